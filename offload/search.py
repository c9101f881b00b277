"""The exact search: the least cost of any sum of points, one a group, that fits.

Branch and bound over the bound on running sets: a range of bounds costs at least what it would
cost with the running sets of its end and the room of its beginning. A range that cannot beat what
is known is left out, any other is halved until one bound is left, whose sum is exact.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from offload.frontier import Limits, cheapest
from offload.price import price_of_side, priced
from offload.stairs import (
    Hulls,
    Point,
    Relaxed,
    hulls_of,
    least_standing_bytes,
    relax,
    rounded_down,
)

_Groups = list[list[Point]]


class Effort(NamedTuple):
    """How far a search goes that need not be exact."""

    patience: int  # bounds in a row that give nothing better
    most_sums: int  # that are followed for one bound


class _Lens(NamedTuple):
    """The groups as they look at one price of the side."""

    price: int
    groups: _Groups


class _View(NamedTuple):
    """What a range of bounds can reach."""

    groups: _Groups
    hulls: Hulls
    relaxed: Relaxed
    floor: int  # no sum within the cap costs less


class Search:
    """Done when made: ``best`` is a point of each group, or None where nothing fits.

    With a ``start`` that fits, the least peak decides between sums of one cost. Without an
    ``effort`` the search is exact.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Point]],
        budget_bytes: int,
        *,
        side: int,
        start: Sequence[Point] = (),
        effort: Effort | None = None,
    ) -> None:
        self._effort = effort
        self.best: tuple[Point, ...] | None = None
        self._key = (0, 0)  # cost and peak of the best
        self._budget_bytes = budget_bytes
        self._side = side
        self._least_peak = bool(start)
        self._free = self._sharp = _Lens(0, [priced(points, 0) for points in groups])
        if start:
            self._offer(start)
        self._bounds = self._reachable()
        self._heap: list[tuple[int, int, int]] = []  # floor, range of bounds
        self._consider(0, len(self._bounds))
        in_vain = 0
        while self._heap and not (effort and in_vain >= effort.patience):
            floor, low, high = heappop(self._heap)
            if self._is_too_dear(floor):
                break
            if high - low == 1:
                known = self._key if self.best else None
                self._solve(low)
                in_vain = in_vain + 1 if self._key == known else 0
            else:
                middle = (low + high) // 2
                self._consider(low, middle)
                self._consider(middle, high)

    def _reachable(self) -> list[int]:
        """The bounds that leave every group a point, and room for it; one where nothing runs."""
        groups = self._free.groups
        if not groups:
            return [0]
        least = max(min(point.running_bytes for point in points) for points in groups)
        room = self._budget_bytes - sum(points[0].standing_bytes for points in groups)
        bounds = {point.running_bytes for points in groups for point in points}
        return sorted(bound for bound in bounds if least <= bound <= room)

    # --- ranges of bounds ------------------------------------------------------------------------
    def _consider(self, low: int, high: int) -> None:
        """Put a range of bounds on the heap unless it cannot hold anything better."""
        if low == high:
            return
        view = self._view(self._free, low, high)
        if view is None or self._cannot_improve(view, low):
            return
        floor = view.floor
        if view.relaxed.side > self._side and self._sharp.price:
            sharp = self._view(self._sharp, low, high)
            if sharp is None or self._cannot_improve(sharp, low):
                return
            floor = max(floor, sharp.floor)
        heappush(self._heap, (floor, low, high))

    def _view(self, lens: _Lens, low: int, high: int) -> _View | None:
        groups = self._within(lens, self._bounds[high - 1])
        if groups is None:
            return None
        hulls = hulls_of(groups)
        relaxed = relax(hulls, self._budget_bytes - self._bounds[low])
        if relaxed is None:
            return None
        return _View(groups, hulls, relaxed, relaxed.floor - lens.price * self._side)

    def _within(self, lens: _Lens, bound_bytes: int) -> _Groups | None:
        """The points with running sets within the bound that some sum under the cap may have."""
        groups = [[p for p in points if p.running_bytes <= bound_bytes] for points in lens.groups]
        least = [min(point.side for point in points) for points in groups]
        spare = self._side - sum(least)
        if spare < 0:
            return None
        return [
            [point for point in points if point.side - own <= spare]
            for points, own in zip(groups, least, strict=True)
        ]

    def _is_too_dear(self, floor: int) -> bool:
        if self.best is None:
            return False
        cost = self._key[0]
        return floor > cost or (floor == cost and not self._least_peak)

    def _cannot_improve(self, view: _View, low: int) -> bool:
        """Whether all costs more than the best, or as much and peaks as high."""
        if self._is_too_dear(view.floor):
            return True
        if self.best is None or view.floor < self._key[0]:
            return False
        weight = self._key[0] + view.relaxed.floor - view.floor
        bound_bytes = self._bounds[low]
        return least_standing_bytes(view.hulls, weight) + bound_bytes >= self._key[1]

    # --- one bound -------------------------------------------------------------------------------
    def _solve(self, at: int) -> None:
        limit_bytes = self._budget_bytes - self._bounds[at]
        view = self._view(self._free, at, at + 1)
        assert view is not None  # it was put on the heap
        self._offer(rounded_down(view.hulls, limit_bytes))
        if view.relaxed.side > self._side:
            price = price_of_side(view.groups, limit_bytes, self._side)
            self._sharp = _Lens(price, [priced(points, price) for points in self._free.groups])
            view = self._view(self._sharp, at, at + 1)
            assert view is not None
        if self._cannot_improve(view, at):
            return
        most = None if self.best is None else self._key[0] + view.relaxed.floor - view.floor
        limits = Limits(limit_bytes, self._side, most)
        most_sums = self._effort.most_sums if self._effort else None
        found = cheapest(view.groups, limits, view.relaxed, most_sums)
        if found is not None:
            self._offer(found)

    def _offer(self, points: Sequence[Point]) -> None:
        """Take it if it is better."""
        if sum(point.side for point in points) > self._side:
            return
        key = (sum(point.cost for point in points), _peak_bytes(points))
        if self.best is None or key < self._key:
            self.best, self._key = tuple(points), key


def _peak_bytes(points: Sequence[Point]) -> int:
    standing = sum(point.standing_bytes for point in points)
    return standing + max((point.running_bytes for point in points), default=0)
