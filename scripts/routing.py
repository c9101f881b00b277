"""Compares Tenure's routing with Ray Serve's default, by simulation: one table.

    python -m scripts.routing

The live comparison, on simulated cards behind Ray Serve itself, is ``scripts.routing_live``.
"""

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from deployments.tables import format_table
from scripts.fleet_policies import ByRank, PowerOfTwo
from scripts.fleet_simulation import (
    KINDS,
    USUAL,
    Card,
    Clock,
    Factory,
    Job,
    Policy,
    Run,
    Start,
    poisson_jobs,
    simulate,
    uneven_fleet,
)

HEADER = ("replicas", "load", "router", "mean", "p50", "p95", "makespan", "fast : middle : slow")
JOBS_A_CARD = 20


def by_rank(cards: Sequence[Card], clock: Clock, start: Start) -> Policy:
    return ByRank(cards, USUAL, clock, start)


def power_of_two(seed: int, cards: Sequence[Card], clock: Clock, start: Start) -> Policy:
    return PowerOfTwo(cards, random.Random(seed), clock, start)


def factories(seed: int) -> dict[str, Factory]:
    return {"rank": by_rank, "power of two": partial(power_of_two, seed)}


def invented(num_cards: int, load: float, seed: int) -> tuple[list[Card], list[Job]]:
    """The same fleet and requests for every router."""
    rng = random.Random(seed)
    cards = uneven_fleet(num_cards, rng)
    return cards, poisson_jobs(cards, load, JOBS_A_CARD * num_cards, rng)


def row(num_cards: int, load: float, name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    """Means over the runs, one for each seed."""
    chosen = sum((run.chosen for run in runs), Counter[str]())
    return (
        str(num_cards),
        f"{load:.0%}",
        name,
        f"{statistics.fmean(statistics.fmean(run.latencies_s) for run in runs):.1f} s",
        f"{statistics.fmean(run.quantile_s(50) for run in runs):.1f} s",
        f"{statistics.fmean(run.quantile_s(95) for run in runs):.1f} s",
        f"{statistics.fmean(run.makespan_s for run in runs):.0f} s",
        " : ".join(f"{chosen[kind] / chosen.total():.0%}" for _, kind in KINDS),
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(usage="python -m scripts.routing")
    parser.add_argument("--replicas", type=int, nargs="+", default=[3, 32, 256])
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    rows = []
    for num_cards in options.replicas:
        for load in options.load:
            runs: dict[str, list[Run]] = {}
            for seed in options.seeds:
                for name, factory in factories(seed).items():
                    run = simulate(*invented(num_cards, load, seed), factory)
                    runs.setdefault(name, []).append(run)
            rows += [row(num_cards, load, name, done) for name, done in runs.items()]
    print(format_table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
