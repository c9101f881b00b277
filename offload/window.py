"""Places for streamed units in a fixed ring of bytes. Pure: it knows sizes and owners, no memory.

A unit is *busy* from the issue of its copy to the end of its call. After that its bytes stay where
they are, *stamped*, until another unit needs the place: a second call before then copies nothing.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Holding(Generic[K]):
    key: K
    start: int
    end: int
    busy: bool

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end


class Window(Generic[K]):
    """At most ``places`` units are busy at once, in ``num_bytes`` of memory together."""

    def __init__(self, num_bytes: int, places: int) -> None:
        self.num_bytes = num_bytes
        self.places = places
        self._holdings: dict[K, _Holding[K]] = {}

    @property
    def busy(self) -> list[K]:
        return [holding.key for holding in self._holdings.values() if holding.busy]

    def holds(self, key: K) -> bool:
        """Whether the unit's bytes are there or on their way."""
        return key in self._holdings

    def start_of(self, key: K) -> int:
        return self._holdings[key].start

    def take(self, key: K, num_bytes: int) -> tuple[int, list[K]] | None:
        """Give ``key`` a place: (start, overwritten stamps), or None while all are busy."""
        if len(self.busy) >= self.places:
            return None
        start = self._find(num_bytes)
        if start is None:
            return None
        gone = [h.key for h in self._holdings.values() if h.overlaps(start, start + num_bytes)]
        for other in gone:
            del self._holdings[other]
        self._holdings[key] = _Holding(key, start, start + num_bytes, busy=True)
        return start, gone

    def reuse(self, key: K) -> None:
        """The unit is called again and its bytes are still there."""
        self._holdings[key].busy = True

    def leave(self, key: K) -> None:
        """The unit's call ended; its bytes stay until the place is needed."""
        holding = self._holdings.pop(key, None)
        if holding is not None:
            holding.busy = False
            self._holdings[key] = holding  # the last in line to be overwritten

    def drop(self, key: K) -> None:
        self._holdings.pop(key, None)

    def _find(self, num_bytes: int) -> int | None:
        """A start that touches no busy unit, and of these the one that was left longest ago.

        Its last reader is then the first to be done, and a refill behind it waits least.
        """
        fitting = [s for s in self._starts() if s + num_bytes <= self.num_bytes]
        touched = {start: self._touched(start, start + num_bytes) for start in fitting}
        free = [start for start in fitting if not any(h.busy for _, h in touched[start])]
        return min(
            free, key=lambda s: (max((i for i, _ in touched[s]), default=-1), s), default=None
        )

    def _starts(self) -> Iterable[int]:
        return {0, *(holding.end for holding in self._holdings.values())}

    def _touched(self, start: int, end: int) -> list[tuple[int, _Holding[K]]]:
        """The holdings there, numbered by when they were left."""
        return [(i, h) for i, h in enumerate(self._holdings.values()) if h.overlaps(start, end)]
