"""One table: the planner's choice against plans written by hand, on the demo pipeline.

``python -m scripts.plan_table``. The computation of each layer is measured once on this machine;
then every plan draws on the virtual clock with those seconds, and the planner's choice on the wall
clock too. It decides nothing: plans come from the planner, seconds from the simulated card.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
import yaml

from deployments.config import AppConfig
from deployments.messages import GenerateJob
from deployments.paths import ROOT
from deployments.pipeline import load_pipeline
from deployments.tables import format_table
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    DoesNotFitError,
    Measured,
    Residency,
    ResidencyPlan,
    ResidencySpec,
    SimulatedCard,
    UnitFacts,
    format_bytes,
    parse_bytes,
    parse_rate,
    plan_residency,
    predicted,
    survey_components,
    with_live_bytes,
    with_measured,
)

SIZES = ("20MiB", "14MiB", "11MiB", "8MiB", "6MiB", "4MiB", "3.5MiB")
RATE = "100MB/s"
NUM_MEASURED = 5
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
    measured_peak_bytes: int
    wall_s: float  # median

    @property
    def best_by_hand_s(self) -> float:
        return min(one for one in self.by_hand_s.values() if one is not None)


class Bench:
    """The demo pipeline and what a request of it takes on this machine."""

    def __init__(self, *, side: int, steps: int, bytes_per_s: float) -> None:
        path = ROOT / "configs" / "quickstart.yaml"
        args = yaml.safe_load(path.read_text())["applications"][0]["args"]
        config = AppConfig.model_validate(args)
        self.bytes_per_s = bytes_per_s
        self._pipeline = load_pipeline(config.model)
        self._job = GenerateJob(
            request_id="bench", prompt="a circle", width=side, height=side, steps=steps, seed=0
        )
        self.facts = self._measured_facts()

    def _measured_facts(self) -> tuple[ComponentFacts, ...]:
        """With everything on the card, so that nothing but the computation is seen."""
        surveyed = survey_components(self._pipeline.components, {})
        with self._attached(self._card(1 << 30), None) as residency:
            for _ in range(2):
                self._draw(residency)
            timed = self._timed(residency)
            counted = self._measure(residency, live=True)
            return with_measured(surveyed, with_live_bytes(timed, counted))

    def _timed(self, residency: Residency) -> Measured:
        """The middle one of several: a single request on a busy machine may say anything."""
        measured = [self._measure(residency, live=False) for _ in range(NUM_MEASURED)]
        return sorted(measured, key=lambda one: one.seconds)[NUM_MEASURED // 2]

    def plan(self, wish: ComponentSpec | None, memory_bytes: int) -> ResidencyPlan | None:
        """None where it does not fit as it was written."""
        spec = ResidencySpec()
        if wish is not None:
            spec = ResidencySpec(components={"all": wish}, when_it_does_not_fit="refuse")
        try:
            return plan_residency(spec, self.facts, self._budget(memory_bytes))
        except DoesNotFitError:
            return None

    def predicted(self, plan: ResidencyPlan) -> float:
        return float(predicted(plan, self.facts)["request_s"])

    def virtual(self, plan: ResidencyPlan, memory_bytes: int) -> tuple[float, int]:
        """Seconds of a request on the virtual clock, and the bytes that it moved."""
        card = self._card(memory_bytes, clock="virtual")
        with self._attached(card, plan) as residency, self._declared(card) as charges:
            self._draw(residency)  # it learns the order
            for charge in charges:
                charge.begin_request()
            began_s = card.now()
            with residency.request() as usage:
                self._generate()
            return card.now() - began_s, usage.copied_bytes

    def wall(self, plan: ResidencyPlan, memory_bytes: int, times: int) -> tuple[float, int]:
        """Median seconds of ``times`` requests, and the peak of one by the ledger."""
        with self._attached(self._card(memory_bytes), plan) as residency:
            self._draw(residency)
            seconds = [self._draw(residency) for _ in range(times)]
            return median(seconds) if seconds else 0.0, self._measure(
                residency, live=True
            ).peak_bytes

    def _measure(self, residency: Residency, *, live: bool) -> Measured:
        with residency.measuring(source="measured", live=live) as probe:
            self._draw(residency)
        return probe.measured()

    def _draw(self, residency: Residency) -> float:
        began_s = residency.card.now()
        with residency.request():
            self._generate()
        return residency.card.now() - began_s

    def _generate(self) -> None:
        self._pipeline.generate(self._job, lambda *_: None, lambda: False)

    def _card(self, memory_bytes: int, clock: Literal["wall", "virtual"] = "wall") -> SimulatedCard:
        return SimulatedCard(memory_bytes=memory_bytes, bytes_per_s=self.bytes_per_s, clock=clock)

    def _budget(self, memory_bytes: int) -> Budget:
        return Budget.of(self._card(memory_bytes).facts())

    @contextmanager
    def _attached(self, card: SimulatedCard, plan: ResidencyPlan | None) -> Iterator[Residency]:
        residency = Residency.attach(
            self._pipeline.components, card=card, plan=plan, log=lambda line: None
        )
        try:
            yield residency
        finally:
            residency.detach()

    @contextmanager
    def _declared(self, card: SimulatedCard) -> Iterator[list["Charge"]]:
        """Every call takes the seconds that were measured for it."""
        charges, handles = [], []
        for module, first_s, later_s, first_calls in self._calls():
            charges.append(Charge(card, first_s, later_s, first_calls))
            handles.append(module.register_forward_pre_hook(charges[-1]))
        try:
            yield charges
        finally:
            for handle in handles:
                handle.remove()

    def _calls(self) -> Iterator[tuple[torch.nn.Module, float, float, int]]:
        """Module, seconds of a first call and a later one, and the calls of a first pass."""
        for facts in self.facts:
            root = self._pipeline.components[facts.name]
            used = [layer for layer in facts.layers if layer.uses]
            for layer in used:
                yield _first_leaf(root.get_submodule(layer.name)), *_seconds(layer), layer.uses
            # What lies outside the layers is charged with the first one that a pass uses.
            first_s, later_s = _seconds(facts.trunk)
            uses = used[0].uses
            yield (
                _first_leaf(root.get_submodule(used[0].name)),
                first_s / uses,
                later_s / uses,
                uses,
            )


def _seconds(unit: UnitFacts) -> tuple[float, float]:
    return unit.compute_s if unit.first_s is None else unit.first_s, unit.compute_s


def _first_leaf(layer: torch.nn.Module) -> torch.nn.Module:
    """Called once a call of the layer; a hook on that would run before its weights arrived."""
    leaves = (one for one in layer.modules() if not list(one.children()))
    return next(one for one in leaves if list(one.parameters()))


class Charge:
    """Charges the calls of one module to the virtual clock."""

    def __init__(self, card: SimulatedCard, first_s: float, later_s: float, first: int) -> None:
        self._card = card
        self._first_s, self._later_s, self._num_first = first_s, later_s, first
        self._num_calls = 0

    def begin_request(self) -> None:
        self._num_calls = 0

    def __call__(self, *_: object) -> None:
        self._num_calls += 1
        first = self._num_calls <= self._num_first
        self._card.compute(self._first_s if first else self._later_s)


# --- the table -----------------------------------------------------------------------------------
def row(bench: Bench, memory_bytes: int, wall_times: int) -> Row:
    plan = bench.plan(None, memory_bytes)
    if plan is None:
        raise SystemExit(f"nothing fits on {format_bytes(memory_bytes)}")
    virtual_s, moved_bytes = bench.virtual(plan, memory_bytes)
    wall_s, peak_bytes = bench.wall(plan, memory_bytes, wall_times)
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
        measured_peak_bytes=peak_bytes,
        wall_s=wall_s,
    )


def table(rows: Sequence[Row]) -> str:
    header = ("card", "chosen", "virtual", "predicted", "wall", "moved", "peak", "peak, ledger")
    cells = [
        (
            format_bytes(one.memory_bytes),
            _chosen(one.plan),
            _s(one.virtual_s),
            _s(one.predicted_s),
            _s(one.wall_s),
            format_bytes(one.moved_bytes),
            format_bytes(one.peak_bytes),
            format_bytes(one.measured_peak_bytes),
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
