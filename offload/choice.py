"""The exact choice: one option of each bundle, by the objective, of all that the budget allows.

[Note: within one percent] First the least slowness of any choice that fits; then, of all that are
at most 1 % slower, the least traffic; then the least peak. Standing sets add up while running sets
take turns, so for every bound on the running sets the rest is a sum under limits. It knows neither
what options are made of nor what slowness and traffic count.
"""

from collections.abc import Sequence
from typing import NamedTuple

from offload.candidates import DIGIT, Candidate
from offload.search import Effort, Search
from offload.stairs import Point


class Option(NamedTuple):
    """One way to hold the components of a bundle; bundles do not touch each other."""

    standing_bytes: int
    running_bytes: int
    slowness: int
    traffic: int
    picks: tuple[Candidate, ...]


Options = Sequence[Sequence[Option]]


class Choice(NamedTuple):
    """What was chosen, and what would be fastest: the measure of the one percent."""

    chosen: tuple[Option, ...]
    fastest: tuple[Option, ...]


def peak_bytes(options: Sequence[Option]) -> int:
    """Every standing set and the largest running one."""
    standing = sum(option.standing_bytes for option in options)
    return standing + max((option.running_bytes for option in options), default=0)


def slowness(options: Sequence[Option]) -> int:
    return sum(option.slowness for option in options)


def within_one_percent(least: int) -> int:
    """The most slowness that counts as the same; what is lost of the wish never does."""
    lost, ns = divmod(least, DIGIT)
    return lost * DIGIT + ns + ns // 100


def choose(
    options: Options,
    budget_bytes: int,
    effort: Effort | None = None,
    known: Choice | None = None,
) -> Choice | None:
    """None where nothing fits; exact without an ``effort``, never worse than a ``known`` one."""
    by_slowness = _points(options, [[(one.slowness, 0) for one in few] for few in options])
    start = Search(by_slowness, budget_bytes, side=0, effort=effort).best
    if start is None:
        return known
    first = _picked(options, start)
    fastest = min(first, known.fastest if known else first, key=slowness)
    most = within_one_percent(slowness(fastest))
    by_traffic = _points(options, [[(one.traffic, one.slowness) for one in few] for few in options])
    start = tuple(points[one.option] for points, one in zip(by_traffic, start, strict=True))
    best = Search(by_traffic, budget_bytes, side=most, start=start, effort=effort).best
    found = [
        fastest,
        *([_picked(options, best)] if best else []),
        *([known.chosen] if known else []),
    ]
    chosen = min((one for one in found if slowness(one) <= most), key=_traffic_and_peak)
    return Choice(chosen, fastest)


def _traffic_and_peak(options: Sequence[Option]) -> tuple[int, int]:
    return sum(option.traffic for option in options), peak_bytes(options)


def _points(options: Options, costs: Sequence[Sequence[tuple[int, int]]]) -> list[list[Point]]:
    return [
        [
            Point(one.standing_bytes, cost, cost, side, one.running_bytes, index)
            for index, (one, (cost, side)) in enumerate(zip(few, paid, strict=True))
        ]
        for few, paid in zip(options, costs, strict=True)
    ]


def _picked(options: Options, points: Sequence[Point]) -> tuple[Option, ...]:
    return tuple(few[point.option] for few, point in zip(options, points, strict=True))


def smallest(options: Options) -> tuple[Option, ...]:
    """The choice with the least peak, whatever it costs."""
    bounds = sorted({one.running_bytes for few in options for one in few}) or [0]
    leanest = []
    for bound in bounds:
        allowed = [[one for one in few if one.running_bytes <= bound] for few in options]
        if all(allowed):
            leanest.append(tuple(min(few, key=lambda one: one.standing_bytes) for few in allowed))
    return min(leanest, key=peak_bytes)
