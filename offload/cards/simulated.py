"""A card made of host memory: the same promises as a real one, on any machine.

It computes at once, so it never runs behind the host; what it cannot show by itself (a slot
overwritten while it is read, memory handed out too early) the order checker shows. What it does
show: a capacity that raises, poison in freed memory and in copies on their way, copies that take
time, bytes held by label.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from offload.cards.base import COPY, Card, CardUsage, Event, Range
from offload.cards.clocks import SimulationClock, VirtualClock, WallClock
from offload.cards.ledger import Ledger
from offload.cards.link import POISON, Link, ThreadedLink
from offload.cards.order import OrderChecker
from offload.errors import CardError, OrderError
from offload.facts import CardFacts, aligned
from offload.live_ledger import LiveLedger
from offload.sizes import format_bytes


class SimulatedOutOfMemory(torch.OutOfMemoryError, CardError):
    """The simulated card's capacity is reached."""


@dataclass(slots=True)
class Mark:
    """A simulated event: when it happens, and the copies that it stands for."""

    time_s: float = 0.0
    first_copy: int = 1  # of those issued since the record before: it answers for their errors
    last_copy: int = 0  # it has passed when all copies up to here have landed


class SimulatedCard(Card):
    """Host memory with a card's capacity, link and two streams.

    ``clock="wall"`` sleeps for copies; ``"virtual"`` moves only by copies and ``compute(seconds)``.
    ``threaded`` lands copies late, on a thread (wall clock only). Activations are seen only while
    they are watched; with ``refuse_activations`` one that does not fit raises then, as on a real
    card. A card that raises cannot be measured, so it is off unless wanted.
    """

    def __init__(
        self,
        *,
        memory_bytes: int,
        bytes_per_s: float = 2e9,
        used_bytes: int = 0,
        reserve_bytes: int = 0,
        clock: Literal["wall", "virtual"] = "wall",
        name: str = "simulated",
        check_order: bool = True,
        threaded: bool = False,
        refuse_activations: bool = False,
    ) -> None:
        order = OrderChecker() if check_order else None
        super().__init__(torch.device("cpu"), name, memory_bytes, reserve_bytes, order)
        self.used_bytes = used_bytes  # held by "other processes"; may change at any time
        self.clock = _make_clock(clock, threaded)
        self._link = (ThreadedLink if threaded else Link)(self.clock, bytes_per_s)
        self._ledger = Ledger()
        self._num_answered = 0  # copies that a recorded event answers for
        self._allocations_left: int | None = None
        self.refuse_activations = refuse_activations
        self._live: LiveLedger | None = None  # while activations are watched

    # --- facts -------------------------------------------------------------------------------
    def facts(self) -> CardFacts:
        return CardFacts(
            name=self.name,
            memory_bytes=self.memory_bytes,
            free_bytes=max(0, self.free_bytes),
            reserve_bytes=self.reserve_bytes + self.set_aside_bytes,
            copy_bytes_per_s=self._link.bytes_per_s,
            simulated=True,
        )

    @property
    def free_bytes(self) -> int:
        live = self.live_bytes if self.refuse_activations else 0
        return self.memory_bytes - self.used_bytes - self._ledger.allocated_bytes - live

    @property
    def live_bytes(self) -> int:
        """Activations, 0 while they are not watched."""
        return 0 if self._live is None else self._live.current_bytes

    def usage(self) -> CardUsage:
        allocated = self._ledger.allocated_bytes + self.live_bytes
        return CardUsage(
            memory_bytes=self.memory_bytes,
            allocated_bytes=allocated,
            reserved_bytes=allocated,
            peak_bytes=self._ledger.peak_bytes,
        )

    def ledger(self) -> dict[str, int]:
        """Bytes held by label, from the storages that live."""
        return self._ledger.by_label()

    @property
    def num_copies_in_flight(self) -> int:
        return self._link.num_issued - self._link.num_landed

    def reset_peak(self) -> None:
        self._ledger.reset_peak()
        self._ledger.note_beside(self.live_bytes)
        if self._live is not None:
            self._live.mark()

    # --- activations -------------------------------------------------------------------------
    @contextmanager
    def watching_activations(self) -> Iterator[None]:
        with LiveLedger(self._activation_grew) as self._live:
            try:
                yield
            finally:
                self._live = None

    def activation_peak_bytes(self) -> int:
        return 0 if self._live is None else self._live.peak_bytes

    def _activation_grew(self, num_bytes: int) -> None:
        if self.refuse_activations and self.free_bytes < 0:
            free_bytes = self.free_bytes + num_bytes  # before it, which is counted by now
            raise SimulatedOutOfMemory(self._out_of_memory(num_bytes, "an activation", free_bytes))
        self._ledger.note_beside(self.live_bytes)

    def synchronize(self) -> None:
        self._link.land_through(self._link.num_issued)

    # --- time --------------------------------------------------------------------------------
    def now(self) -> float:
        """Seconds on this card's clock."""
        return self.clock.now()

    def compute(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # --- failures on purpose -----------------------------------------------------------------
    def fail_allocation_after(self, num_allocations: int) -> None:
        """Let one allocation fail for lack of memory, after so many that succeed."""
        self._allocations_left = num_allocations

    def fail_copy(self, error: BaseException, after: int = 0) -> None:
        """Let one copy fail when it lands: the next, or the one ``after`` that many more."""
        self._link.fail(error, after)

    # --- the card's own ----------------------------------------------------------------------
    def _allocate(self, num_bytes: int, label: str) -> torch.Tensor:
        if self._refused_on_purpose() or aligned(num_bytes) > self.free_bytes:
            raise SimulatedOutOfMemory(self._out_of_memory(num_bytes, label, self.free_bytes))
        tensor = self._ledger.add(num_bytes, label).fill_(POISON)
        self._ledger.note_beside(self.live_bytes)
        return tensor

    def _refused_on_purpose(self) -> bool:
        if self._allocations_left is None:
            return False
        self._allocations_left -= 1
        if self._allocations_left >= 0:
            return False
        self._allocations_left = None
        return True

    def _out_of_memory(self, num_bytes: int, label: str, free_bytes: int) -> str:
        labels = self.ledger() | ({"activations": self.live_bytes} if self.live_bytes else {})
        held = sorted(labels.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in held) or "nothing"
        return (
            f"out of memory on card {self.name}: {format_bytes(num_bytes)} asked for {label}, "
            f"{format_bytes(max(0, free_bytes))} free of {format_bytes(self.memory_bytes)}; "
            f"other processes hold {format_bytes(self.used_bytes)}; held here: {listed}"
        )

    def _release(self, tensor: torch.Tensor) -> None:
        late = self._link.in_flight(Range.of(tensor))
        if late is not None:
            raise OrderError(
                f"memory is released while a copy for {late.label} is on its way into it; let the "
                "compute stream wait for the run's last copy first"
            )
        self._ledger.mark_released(tensor)
        tensor.fill_(POISON)

    def _make_event(self) -> Mark:
        return Mark()

    def _record(self, event: Event, stream: str) -> None:
        if stream != COPY:  # the host computes at once: whatever was queued before is done
            event.handle = Mark(time_s=self.now())
            return
        issued = self._link.num_issued
        event.handle = Mark(self._link.free_at_s, self._num_answered + 1, issued)
        self._num_answered = issued

    def _wait(self, event: Event, stream: str, charge_to: str) -> None:
        if stream == COPY:
            self._link.not_before(event.handle.time_s)
            return
        waited_s = self._link.land_through(event.handle.last_copy)
        if charge_to:
            self.timing(charge_to).stall_s += waited_s
        self._raise_error(event)

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None:
        self.timing(charge_to).copy_s += self._link.issue(destination, source, charge_to)

    def _passed(self, event: Event) -> bool:
        self._link.land_due()
        return bool(self._link.num_landed >= event.handle.last_copy)

    def _host_wait(self, event: Event) -> None:
        self._link.land_through(event.handle.last_copy)
        self._raise_error(event)

    def _raise_error(self, event: Event) -> None:
        mark: Mark = event.handle
        event.error = event.error or self._link.error_within(mark.first_copy, mark.last_copy)
        if event.error is not None:
            raise event.error


def _make_clock(clock: str, threaded: bool) -> SimulationClock:
    if clock not in ("wall", "virtual"):
        raise CardError(f"clock is {clock!r}; a simulated card has wall or virtual")
    if clock == "wall":
        return WallClock()
    if threaded:
        raise CardError("a threaded simulated card needs clock='wall': threads land in real time")
    return VirtualClock()
