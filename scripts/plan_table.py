"""One table: the planner's choice against plans written by hand, on the demo pipeline.

``python -m scripts.plan_table``. The computation of each layer is measured once on this machine;
then every plan draws on the virtual clock with those seconds, and the planner's choice on the wall
clock too. It decides nothing: plans come from the planner, seconds from the simulated card.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.tables import format_table
from offload import (
    ComponentSpec,
    ResidencyPlan,
    format_bytes,
    parse_bytes,
    parse_rate,
)
from scripts.plan_bench import Bench, Wall

SIZES = ("20MiB", "14MiB", "11MiB", "8MiB", "6MiB", "4MiB", "3.5MiB")
RATE = "100MB/s"
BY_HAND: Mapping[str, ComponentSpec] = {
    "all forward": ComponentSpec(resident_layers="all", lifetime="forward"),
    "all permanent": ComponentSpec(resident_layers="all", lifetime="permanent"),
    "0.8 permanent": ComponentSpec(resident_layers=0.8, lifetime="permanent"),
    "0.8 leading": ComponentSpec(resident_layers=0.8, lifetime="forward", policy="leading"),
    "0.8 spread": ComponentSpec(resident_layers=0.8, lifetime="forward", policy="spread"),
    "0.5 leading": ComponentSpec(resident_layers=0.5, policy="leading"),
    "0.5 spread": ComponentSpec(resident_layers=0.5, policy="spread"),
    "streamed": ComponentSpec(resident_layers="none"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One card."""

    memory_bytes: int
    plan: ResidencyPlan
    predicted_s: float
    virtual_s: float
    by_hand_s: Mapping[str, float | None]  # None: it does not fit
    moved_bytes: int
    peak_bytes: int  # predicted
    wall: Wall

    @property
    def best_by_hand_s(self) -> float:
        return min(one for one in self.by_hand_s.values() if one is not None)


def row(bench: Bench, memory_bytes: int, wall_times: int) -> Row:
    plan = bench.plan(None, memory_bytes)
    if plan is None:
        raise SystemExit(f"nothing fits on {format_bytes(memory_bytes)}")
    virtual_s, moved_bytes = bench.virtual(plan, memory_bytes)
    by_hand = {name: bench.plan(wish, memory_bytes) for name, wish in BY_HAND.items()}
    return Row(
        memory_bytes=memory_bytes,
        plan=plan,
        predicted_s=bench.predicted(plan),
        virtual_s=virtual_s,
        by_hand_s={
            name: None if one is None else bench.virtual(one, memory_bytes)[0]
            for name, one in by_hand.items()
        },
        moved_bytes=moved_bytes,
        peak_bytes=plan.peak_bytes,
        wall=bench.wall(plan, memory_bytes, wall_times),
    )


def table(rows: Sequence[Row]) -> str:
    header = (
        "card",
        "chosen",
        "virtual",
        "predicted",
        "wall",
        "predicted",
        "moved",
        "peak",
        "peak, ledger",
    )
    cells = [
        (
            format_bytes(one.memory_bytes),
            _chosen(one.plan),
            _s(one.virtual_s),
            _s(one.predicted_s),
            _s(one.wall.seconds),
            _s(one.wall.predicted_s),
            format_bytes(one.moved_bytes),
            format_bytes(one.peak_bytes),
            format_bytes(one.wall.peak_bytes),
        )
        for one in rows
    ]
    by_hand = [(format_bytes(one.memory_bytes), *map(_s, one.by_hand_s.values())) for one in rows]
    hand_header = ("card, by hand, virtual", *BY_HAND)
    return f"{format_table(header, cells)}\n\n{format_table(hand_header, by_hand)}"


def _chosen(plan: ResidencyPlan) -> str:
    return ", ".join(
        f"{one.name} {one.resident_layers}/{len(one.layers)} {one.lifetime}"
        for one in plan.components
    )


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="cards, such as 14MiB")
    parser.add_argument("--rate", default=RATE, help="of the link")
    parser.add_argument("--side", type=int, default=128, help="pixels")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--times", type=int, default=5, help="drawings on the wall clock")
    asked = parser.parse_args()
    bench = Bench(side=asked.side, steps=asked.steps, bytes_per_s=parse_rate(asked.rate))
    rows = [row(bench, parse_bytes(size), asked.times) for size in asked.sizes]
    print(table(rows))


if __name__ == "__main__":
    main()
