"""The exact choice: one candidate per component, at the least cost that the budget allows.

Standing sets add up while running sets take turns, so for every possible bound on the running sets
the rest is a sum under a limit. It knows neither what a candidate is made of nor what costs mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from offload.plan import ComponentPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to hold one component."""

    plan: ComponentPlan
    standing_bytes: int
    running_bytes: int
    cost: int
    """Lexicographic: digits of a large base, so that the costs of components add up."""


class _Point(NamedTuple):
    """A pick for some of the components."""

    standing_bytes: int
    cost: int
    picks: tuple[Candidate, ...]


class _Step(NamedTuple):
    """From one corner of a staircase's convex hull to the next, steepest first."""

    slope: int  # negative; exact, see _steps
    more_bytes: int
    less_cost: int


class _Stairs(NamedTuple):
    """What one component can do: standing bytes rise, costs fall."""

    points: list[_Point]
    steps: list[_Step]


class _Round(NamedTuple):
    """All that is possible while no running set is larger than ``bound_bytes``."""

    floor: int  # no cost of this round is lower
    bound_bytes: int
    stairs: tuple[_Stairs, ...]


_order = itemgetter(0, 1)


def peak_bytes(picks: Sequence[Candidate]) -> int:
    """Every standing set and the largest running one."""
    standing = sum(pick.standing_bytes for pick in picks)
    return standing + max((pick.running_bytes for pick in picks), default=0)


def choose(
    options: Sequence[Sequence[Candidate]], budget_bytes: int
) -> tuple[Candidate, ...] | None:
    """The picks of least cost, then least peak, that fit; None where none do."""
    best: tuple[int, int, tuple[Candidate, ...]] | None = None
    for this in sorted(_promising(options, budget_bytes), key=_order):
        if best is not None and this.floor > best[0]:
            break
        found = _cheapest(this.stairs, budget_bytes - this.bound_bytes)
        key = (found.cost, peak_bytes(found.picks), found.picks)
        best = key if best is None or key[:2] < best[:2] else best
    return None if best is None else best[2]


def smallest(options: Sequence[Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """The picks with the least peak, whatever they cost."""
    leanest = (
        tuple(pick for stair in stairs for pick in stair.points[0].picks)
        for _, stairs in _by_running_bound(options)
    )
    return min(leanest, key=peak_bytes)


# --- rounds ----------------------------------------------------------------------------------
def _promising(options: Sequence[Sequence[Candidate]], budget_bytes: int) -> Iterator[_Round]:
    for bound, stairs in _by_running_bound(options):
        floor = _floor(stairs, budget_bytes - bound)
        if floor is not None:
            yield _Round(floor, bound, stairs)


def _by_running_bound(
    options: Sequence[Sequence[Candidate]],
) -> Iterator[tuple[int, tuple[_Stairs, ...]]]:
    """Each bound that some candidate reaches, with what every component can do below it."""
    points = [
        sorted((_Point(c.standing_bytes, c.cost, (c,)) for c in few), key=_order) for few in options
    ]
    reached: dict[int, set[int]] = {} if options else {0: set()}
    for index, few in enumerate(options):
        for candidate in few:
            reached.setdefault(candidate.running_bytes, set()).add(index)
    stairs: dict[int, _Stairs] = {}
    for bound in sorted(reached):
        for index in reached[bound]:
            stairs[index] = _stairs(p for p in points[index] if p.picks[0].running_bytes <= bound)
        if len(stairs) == len(options):
            yield bound, tuple(stairs[index] for index in range(len(options)))


def _stairs(points: Iterable[_Point]) -> _Stairs:
    kept = _falling(points)
    return _Stairs(kept, _steps(kept))


def _falling(points: Iterable[_Point]) -> list[_Point]:
    """Drop every point that holds as much as another one and costs no less; points come sorted."""
    kept: list[_Point] = []
    for point in points:
        if not kept or point.cost < kept[-1].cost:
            kept.append(point)
    return kept


# --- a lower bound ---------------------------------------------------------------------------
def _steps(points: Sequence[_Point]) -> list[_Step]:
    """The convex hull of a staircase. The shift keeps slopes exact up to 2**48 bytes."""
    steps: list[_Step] = []
    for before, point in pairwise(points):
        more, less = point.standing_bytes - before.standing_bytes, before.cost - point.cost
        while steps and less * steps[-1].more_bytes >= steps[-1].less_cost * more:
            more, less = more + steps[-1].more_bytes, less + steps[-1].less_cost
            steps.pop()
        steps.append(_Step(-(less << 128) // more, more, less))
    return steps


def _floor(stairs: Sequence[_Stairs], limit_bytes: int) -> int | None:
    """The cost if candidates could be mixed freely; None where not even the leanest ones fit."""
    left = limit_bytes - sum(stair.points[0].standing_bytes for stair in stairs)
    if left < 0:
        return None
    cost = sum(stair.points[0].cost for stair in stairs)
    for _, more, less in sorted(step for stair in stairs for step in stair.steps):
        if more > left:
            return cost - -(-less * left // more)
        left -= more
        cost -= less
    return cost


# --- the exact sum under a limit -------------------------------------------------------------
def _cheapest(stairs: Sequence[_Stairs], limit_bytes: int) -> _Point:
    """Merge half of the components with half, then walk both staircases against each other."""
    middle = len(stairs) // 2
    left, right = _merged(stairs[:middle], limit_bytes), _merged(stairs[middle:], limit_bytes)
    sums = []
    at = len(right) - 1
    for point in left:
        while at >= 0 and point.standing_bytes + right[at].standing_bytes > limit_bytes:
            at -= 1
        if at >= 0:
            sums.append(_sum(point, right[at]))
    return min(sums, key=lambda both: (both.cost, both.standing_bytes))


def _merged(stairs: Sequence[_Stairs], limit_bytes: int) -> list[_Point]:
    nothing = [_Point(0, 0, ())]
    return reduce(lambda done, stair: _merge(done, stair.points, limit_bytes), stairs, nothing)


def _merge(left: list[_Point], right: list[_Point], limit_bytes: int) -> list[_Point]:
    sums = (_sum(a, b) for a in left for b in right)
    return _falling(sorted((p for p in sums if p.standing_bytes <= limit_bytes), key=_order))


def _sum(a: _Point, b: _Point) -> _Point:
    return _Point(a.standing_bytes + b.standing_bytes, a.cost + b.cost, a.picks + b.picks)
