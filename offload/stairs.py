"""What a group of options can reach if they could be mixed freely: lower bounds, and good guesses.

A group's points, standing bytes rising and weights falling, have a convex hull; of several hulls
the steepest steps come first. Integers throughout, so that bounds are exact. It knows no budgets
and no running sets: one limit on the sum of standing bytes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Point(NamedTuple):
    """One option in the eyes of a search."""

    standing_bytes: int
    weight: int  # the cost, and the price of its side: bounds are of weights
    cost: int
    side: int  # what must not exceed a cap in sum
    running_bytes: int
    option: int  # its number in the group


class _Step(NamedTuple):
    """From one corner of a hull to the next; those with the smallest slope save most a byte."""

    slope: int  # negative; the shift keeps it exact enough to sort, and the walk is exact by itself
    more_bytes: int
    less_weight: int
    less_side: int
    group: int
    point: Point


class Hulls(NamedTuple):
    """The leanest point of each group, and the steps up from there in the order of their worth."""

    lean: list[Point]
    steps: list[_Step]


class Relaxed(NamedTuple):
    """The bound: no sum within the limit weighs less."""

    floor: int
    side: int  # of the mixture that weighs so
    # The price of a standing byte at the limit, as a fraction.
    price: int
    per_bytes: int


def hulls_of(groups: Sequence[Sequence[Point]]) -> Hulls:
    """Groups come sorted by standing bytes, then weight; none is empty."""
    steps: list[_Step] = []
    for number, points in enumerate(groups):
        steps += _steps(_falling(points), number)
    steps.sort()
    return Hulls([points[0] for points in groups], steps)


def _falling(points: Sequence[Point]) -> list[Point]:
    """Drop every point that holds as much as another one and weighs no less."""
    kept = [points[0]]
    least = points[0].weight
    for point in points:
        if point.weight < least:
            kept.append(point)
            least = point.weight
    return kept


def _steps(points: Sequence[Point], group: int) -> list[_Step]:
    corners: list[tuple[int, int, Point]] = []  # standing bytes, weight: the hull so far
    for point in points:
        standing, weight = point.standing_bytes, point.weight
        while len(corners) > 1:
            (first, high, _), (middle, low, _) = corners[-2:]
            # Where the way to the new corner is as steep as to the last one, that one is none.
            if (low - weight) * (middle - first) < (high - low) * (standing - middle):
                break
            corners.pop()
        corners.append((standing, weight, point))
    steps = []
    for (standing, weight, before), (more, less, point) in pairwise(corners):
        slope = -((weight - less) << 64) // (more - standing)
        side = before.side - point.side
        steps.append(_Step(slope, more - standing, weight - less, side, group, point))
    return steps


def relax(hulls: Hulls, limit_bytes: int) -> Relaxed | None:
    """None where not even the leanest points fit together."""
    left = limit_bytes - sum(point.standing_bytes for point in hulls.lean)
    if left < 0:
        return None
    weight = sum(point.weight for point in hulls.lean)
    side = sum(point.side for point in hulls.lean)
    for step in hulls.steps:
        if step.more_bytes > left:
            floor = weight - step.less_weight * left // step.more_bytes
            side -= step.less_side * left // step.more_bytes
            return Relaxed(floor, side, step.less_weight, step.more_bytes)
        left -= step.more_bytes
        weight -= step.less_weight
        side -= step.less_side
    return Relaxed(weight, side, 0, 1)


def least_standing_bytes(hulls: Hulls, weight: int) -> int:
    """No sum that weighs at most this, which can be reached, holds fewer standing bytes."""
    standing = sum(point.standing_bytes for point in hulls.lean)
    excess = sum(point.weight for point in hulls.lean) - weight
    for step in hulls.steps:
        if excess <= 0:
            break
        if step.less_weight >= excess:
            return standing + -(-step.more_bytes * excess // step.less_weight)
        standing += step.more_bytes
        excess -= step.less_weight
    return standing


def rounded_down(hulls: Hulls, limit_bytes: int) -> list[Point]:
    """A good sum within the limit, which holds the leanest points: whole steps only."""
    picks = list(hulls.lean)
    left = limit_bytes - sum(point.standing_bytes for point in picks)
    blocked: set[int] = set()
    for step in hulls.steps:
        if step.group in blocked:
            continue
        if step.more_bytes > left:
            blocked.add(step.group)
            continue
        left -= step.more_bytes
        picks[step.group] = step.point
    return picks
