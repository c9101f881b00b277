"""Proves that events, not luck, order every two accesses to the same card memory.

Vector clocks over byte ranges. It knows nothing of units or cards: it is told what each stream
does, in host order, and *being called later on the host is no edge*. Two accesses that overlap, one
of which writes, must be ordered by events; allocating and freeing count as writes.
"""

from typing import Protocol

from offload.cards.intervals import Access, Interval, IntervalMap, Range
from offload.errors import OrderError

Clock = dict[str, int]  # stream -> number of its accesses that are known to be done
PRUNE_ABOVE = 4096  # intervals; above it, freed ranges that every stream knows of are forgotten


class Recordable(Protocol):
    """An event as the checker sees it: a name, and the clock of its last record (None: never)."""

    name: str
    clock: Clock | None


class OrderChecker:
    """Told of every access, record and wait; raises OrderError at a pair that nothing orders."""

    def __init__(self) -> None:
        self._clocks: dict[str, Clock] = {}
        self._host: Clock = {}  # what the host has waited for; every later call inherits it
        self._memory = IntervalMap()
        self._labels: dict[int, str] = {}  # start of a live allocation -> its label

    @property
    def num_allocations(self) -> int:
        """Ranges that were allocated and not freed."""
        return len(self._labels)

    def alloc(self, where: Range, stream: str, label: str) -> None:
        if where.num_bytes:
            self._write("allocates", where, stream, label)
            self._labels[where.start] = label

    def free(self, where: Range, stream: str) -> None:
        if not where.num_bytes:
            return
        label = self._labels.pop(where.start, None)
        if label is None:
            raise OrderError(
                f"{stream} stream frees {_span(where)}, which is not allocated: "
                "it was freed before, or never came from this card; release each allocation once"
            )
        self._write("frees", where, stream, label)
        if len(self._memory) > PRUNE_ABOVE:
            self._prune()

    def write(self, where: Range, stream: str, unit: str) -> None:
        if where.num_bytes:
            self._write("writes", where, stream, unit)

    def read(self, where: Range, stream: str, unit: str) -> None:
        if not where.num_bytes:
            return
        access = self._access("reads", unit, stream)
        for interval in self._memory.tile(where):
            self._check(interval, access, where)
            interval.reads[stream] = access

    def record(self, event: Recordable, stream: str) -> None:
        event.clock = dict(self._clock(stream))

    def wait(self, event: Recordable, stream: str) -> None:
        _join(self._clock(stream), _recorded(event, f"{stream} stream"))

    def host_wait(self, event: Recordable) -> None:
        _join(self._host, _recorded(event, "host"))

    @property
    def num_intervals(self) -> int:
        """How much it remembers; bounded, whatever the length of the run."""
        return len(self._memory)

    def _write(self, verb: str, where: Range, stream: str, unit: str) -> None:
        access = self._access(verb, unit, stream)
        for interval in self._memory.tile(where):
            self._check(interval, access, where)
            for earlier in interval.reads.values():
                self._check_pair(earlier, access, where)
        self._memory.merge(where, access)

    def _access(self, verb: str, unit: str, stream: str) -> Access:
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        return Access(verb, unit, stream, clock[stream])

    def _check(self, interval: Interval, access: Access, where: Range) -> None:
        earlier = interval.last
        if earlier is None:
            return
        self._check_pair(earlier, access, where)
        if earlier.verb == "frees" and access.verb != "allocates":
            raise OrderError(
                f"'{access}' in {_span(where)}, which is free: '{earlier}' came before; "
                "release memory only after its last use"
            )

    def _check_pair(self, earlier: Access, later: Access, where: Range) -> None:
        if self._clocks[later.stream].get(earlier.stream, 0) < earlier.tick:
            raise OrderError(
                f"nothing orders two accesses to {_span(where)}: '{earlier}', then '{later}'. "
                f"Missing edge {earlier.stream} -> {later.stream}: record an event on the "
                f"{earlier.stream} stream after the first, and let the {later.stream} stream wait "
                "for it before the second"
            )

    def _clock(self, stream: str) -> Clock:
        clock = self._clocks.setdefault(stream, {})
        _join(clock, self._host)
        return clock

    def _prune(self) -> None:
        """Forget freed ranges whose free every stream knows of: nothing later can race with it."""
        self._memory.keep([interval for interval in self._memory if not self._is_over(interval)])

    def _is_over(self, interval: Interval) -> bool:
        last = interval.last
        if last is None or last.verb != "frees":
            return False
        return all(self._clock(s).get(last.stream, 0) >= last.tick for s in self._clocks)


def _join(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        if tick > clock.get(stream, 0):
            clock[stream] = tick


def _recorded(event: Recordable, waiter: str) -> Clock:
    if event.clock is None:
        raise OrderError(
            f"{waiter} waits for {event.name}, which was never recorded: a card ignores "
            "such a wait; record the event first"
        )
    return event.clock


def _span(where: Range) -> str:
    return f"[{where.start:#x}, {where.end:#x})"
