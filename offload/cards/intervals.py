"""Ranges of card memory and the history of each: the order checker's memory. It judges nothing."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes of card memory: [start, start + num_bytes)."""

    start: int
    num_bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Range":
        return cls(start=tensor.data_ptr(), num_bytes=tensor.numel() * tensor.element_size())

    @property
    def end(self) -> int:
        return self.start + self.num_bytes


@dataclass(frozen=True, slots=True)
class Access:
    """The ``tick``-th access of a stream."""

    verb: str  # "allocates", "writes", "reads" or "frees"
    unit: str
    stream: str
    tick: int

    def __str__(self) -> str:
        return f"{self.stream} stream {self.verb} {self.unit}"


@dataclass(slots=True)
class Interval:
    """[start, end) with one history: its last write, and the last read of each stream since."""

    start: int
    end: int
    last: Access | None = None  # all earlier writes are ordered before it, so one is enough
    reads: dict[str, Access] = field(default_factory=dict)

    def split(self, at: int) -> "Interval":
        """Cut at ``at``; returns the upper part."""
        upper = Interval(at, self.end, self.last, dict(self.reads))
        self.end = at
        return upper


class IntervalMap:
    """Disjoint intervals in address order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._intervals: list[Interval] = []

    def __len__(self) -> int:
        return len(self._intervals)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._intervals)

    def tile(self, where: Range) -> list[Interval]:
        """The intervals that cover exactly ``where``: split at its ends, gaps filled."""
        self._split(where.start)
        self._split(where.end)
        low, high = bisect_left(self._starts, where.start), bisect_left(self._starts, where.end)
        tiles, at = [], where.start
        for interval in self._intervals[low:high]:
            if interval.start > at:
                tiles.append(Interval(at, interval.start))
            tiles.append(interval)
            at = interval.end
        if at < where.end:
            tiles.append(Interval(at, where.end))
        self._replace(low, high, tiles)
        return tiles

    def merge(self, where: Range, last: Access) -> None:
        """Give all of ``where`` one history that starts with ``last``."""
        low, high = bisect_left(self._starts, where.start), bisect_left(self._starts, where.end)
        self._replace(low, high, [Interval(where.start, where.end, last)])

    def keep(self, intervals: list[Interval]) -> None:
        self._replace(0, len(self._intervals), intervals)

    def _split(self, at: int) -> None:
        index = bisect_right(self._starts, at) - 1
        if index >= 0 and self._intervals[index].start < at < self._intervals[index].end:
            self._replace(index + 1, index + 1, [self._intervals[index].split(at)])

    def _replace(self, low: int, high: int, intervals: list[Interval]) -> None:
        self._intervals[low:high] = intervals
        self._starts[low:high] = [interval.start for interval in intervals]
