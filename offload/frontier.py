"""The exact sum: one point of each group, the least cost within a limit and a cap.

Points that cannot be part of a sum better than what is known are left out first, by the price that
the bound puts on a standing byte; what remains is merged group by group, keeping what nothing
dominates.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from offload.stairs import Point, Relaxed


class Limits(NamedTuple):
    """What a sum must keep to."""

    standing_bytes: int
    side: int
    weight: int | None  # the most of any sum as good as the best known one; None: none is known


class _Sum(NamedTuple):
    standing_bytes: int
    cost: int
    side: int
    priced: int
    picks: tuple[Point, ...]


class _Rest(NamedTuple):
    """The least that the groups still to come add."""

    standing_bytes: int
    side: int
    priced: int


def cheapest(
    groups: Sequence[Sequence[Point]],
    limits: Limits,
    relaxed: Relaxed,
    most_sums: int | None = None,
) -> tuple[Point, ...] | None:
    """Of the sums within the limits the one of least cost, then of fewest standing bytes.

    With ``most_sums`` only so many, of the best price, are followed: no longer exact.
    """
    priced = [[_as_sum(point, relaxed) for point in points] for points in groups]
    ceiling = _ceiling(limits, relaxed)
    sums = [_Sum(0, 0, 0, 0, ())]
    for at, points in enumerate(priced):
        sums = _merged(sums, points, limits, ceiling, _rest(priced[at + 1 :]))
        if most_sums is not None and len(sums) > most_sums:
            sums = sorted(sums, key=lambda one: one.priced)[:most_sums]
    best = min(sums, key=lambda one: (one.cost, one.standing_bytes), default=None)
    return None if best is None else best.picks


def _as_sum(point: Point, relaxed: Relaxed) -> _Sum:
    priced = point.weight * relaxed.per_bytes + point.standing_bytes * relaxed.price
    return _Sum(point.standing_bytes, point.cost, point.side, priced, (point,))


def _ceiling(limits: Limits, relaxed: Relaxed) -> int | None:
    """No sum within the limits that is as good as the best known one has a higher price."""
    if limits.weight is None:
        return None
    return limits.weight * relaxed.per_bytes + limits.standing_bytes * relaxed.price


def _rest(groups: Sequence[Sequence[_Sum]]) -> _Rest:
    return _Rest(
        sum(min(one.standing_bytes for one in few) for few in groups),
        sum(min(one.side for one in few) for few in groups),
        sum(min(one.priced for one in few) for few in groups),
    )


def _merged(
    sums: Sequence[_Sum],
    points: Sequence[_Sum],
    limits: Limits,
    ceiling: int | None,
    rest: _Rest,
) -> list[_Sum]:
    most_bytes = limits.standing_bytes - rest.standing_bytes
    most_side = limits.side - rest.side
    most_priced = None if ceiling is None else ceiling - rest.priced
    found = []
    for a in sums:
        for b in points:
            if (
                a.standing_bytes + b.standing_bytes <= most_bytes
                and a.side + b.side <= most_side
                and (most_priced is None or a.priced + b.priced <= most_priced)
            ):
                found.append(
                    _Sum(
                        a.standing_bytes + b.standing_bytes,
                        a.cost + b.cost,
                        a.side + b.side,
                        a.priced + b.priced,
                        a.picks + b.picks,
                    )
                )
    return _undominated(found)


def _undominated(sums: list[_Sum]) -> list[_Sum]:
    """Those that no other one beats in standing bytes, cost and side at once."""
    kept: list[_Sum] = []
    costs: list[int] = []  # rising, and ``sides`` falling with them
    sides: list[int] = []
    for one in sorted(sums, key=lambda s: s[:3]):
        at = bisect_right(costs, one.cost)
        if at and sides[at - 1] <= one.side:
            continue
        kept.append(one)
        at = end = bisect_left(costs, one.cost)
        while end < len(sides) and sides[end] >= one.side:
            end += 1
        costs[at:end] = [one.cost]
        sides[at:end] = [one.side]
    return kept
