"""Measures on the card's own streams, without making anybody wait. It knows no labels' meaning.

Two timing events around a piece of a stream; they are read once the card has passed them, and go
back to a pool only then, so that no event is recorded again before it was read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One measured piece of a stream."""

    label: str
    num_bytes: int  # copied in it; 0: the computation stood still
    seconds: float


@dataclass(slots=True)
class _Pair:
    label: str
    num_bytes: int
    start: Any  # the card's timing events
    stop: Any


class Stopwatch:
    """Hands out pairs of timing events and reads them when they are complete."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._pool: list[Any] = []
        self._open: list[_Pair] = []

    def start(self, stream: Any) -> Any:
        event = self._pool.pop() if self._pool else self._make_event()
        event.record(stream)
        return event

    def stop(self, start: Any, stream: Any, label: str, num_bytes: int = 0) -> None:
        self._open.append(_Pair(label, num_bytes, start, self.start(stream)))

    def between(self, moments: Sequence[Any]) -> list[float]:
        """Seconds from each started event to the next, all passed; the events go to the pool."""
        laps_s = [first.elapsed_time(then) / 1000 for first, then in pairwise(moments)]
        self._pool += moments
        return laps_s

    def finished(self) -> list[Lap]:
        """Laps that the card has passed, each once; the others stay."""
        laps, still_open = [], []
        for pair in self._open:
            if not pair.stop.query():  # elapsed_time would raise
                still_open.append(pair)
                continue
            seconds = pair.start.elapsed_time(pair.stop) / 1000
            laps.append(Lap(label=pair.label, num_bytes=pair.num_bytes, seconds=seconds))
            self._pool += (pair.start, pair.stop)
        self._open = still_open
        return laps
