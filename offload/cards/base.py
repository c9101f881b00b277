"""What the engine asks of a card: memory, two streams, events, copies. It knows nothing of units.

Public methods are written once, here: they report to the order checker, refuse a wait on an event
that was never recorded (a real card would silently do nothing), and then call the card's own
``_``-methods. Host order never orders two streams; only a recorded event does.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from offload.cards.intervals import Range as Range
from offload.cards.order import Clock, OrderChecker
from offload.cards.pinning import Pinner
from offload.errors import StateError
from offload.facts import CardFacts, aligned
from offload.pin_budget import PinShare, WholeShare

COMPUTE = "compute"
COPY = "copy"


@dataclass(slots=True, eq=False)
class Event:
    """A point in a stream. ``recorded`` stands beside the card's own event, which does not tell."""

    name: str
    handle: Any = None  # the card's own event object
    recorded: bool = False
    error: BaseException | None = None  # a copy that failed: every waiter raises it
    clock: Clock | None = None  # the order checker's: what is done when this event has passed


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsage:
    """Bytes on the card now; ``reserved`` is what the allocator keeps from the driver."""

    memory_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int


@dataclass(slots=True, kw_only=True)
class Timing:
    """What one label's copies cost since the last ``take_timings``."""

    copied_bytes: int = 0
    copy_s: float = 0.0  # the link was busy with this label
    stall_s: float = 0.0  # the computation stood still for this label


@dataclass(slots=True)
class Card(ABC):
    """One accelerator. All calls come from the owner thread of the residency that uses it."""

    device: torch.device
    name: str
    memory_bytes: int
    reserve_bytes: int
    order: OrderChecker | None = None
    timings: dict[str, Timing] = field(default_factory=dict)
    set_aside_bytes: int = 0  # on top of the reserve: what a start that ran out of memory adds
    pinner: Pinner | None = None  # page-locks host memory; None: the card has no use for it
    pin_share: PinShare = field(default_factory=WholeShare)  # how much of it may be locked
    held_bytes: int = 0  # allocated by the engine and not released: no activations

    # --- facts -------------------------------------------------------------------------------
    @abstractmethod
    def facts(self) -> CardFacts:
        """The card as it is now; creates no context where none exists."""

    @abstractmethod
    def usage(self) -> CardUsage: ...

    @abstractmethod
    def reset_peak(self) -> None: ...

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host for all work. Never on the hot path: load, recovery and tests only."""

    def watching_activations(self) -> AbstractContextManager[None]:
        """Within it ``usage`` counts activations too, on a card that does not always do so."""
        return nullcontext()

    def activation_peak_bytes(self) -> int:
        """The most beside what the engine holds since ``reset_peak``.

        Exact where the engine holds the same all the while.
        """
        return max(0, self.usage().peak_bytes - self.held_bytes)

    def is_capturing(self) -> bool:
        """Whether the compute stream is being captured: hooks do not run in a replay."""
        return False

    def empty_cache(self) -> None:
        """Give free but reserved memory back. Recovery, sleep and between plans only."""
        return

    # --- memory ------------------------------------------------------------------------------
    def allocate(self, num_bytes: int, label: str) -> torch.Tensor:
        """Memory of the compute stream; uint8 (num_bytes,) on the card, contents undefined.

        ``label`` is "component/lifetime[/unit]". Raises torch.OutOfMemoryError if it does not fit.
        Made outside inference mode: a parameter bound to it must not become an inference tensor.
        """
        with torch.inference_mode(False), torch.no_grad():
            tensor = self._allocate(num_bytes, label)
        self.held_bytes += aligned(tensor.numel())
        if self.order is not None:
            self.order.alloc(Range.of(tensor), COMPUTE, label)
        return tensor

    def release(self, tensor: torch.Tensor) -> None:
        """End the life of an allocation; the caller drops every view of it. Copies nothing."""
        if self.order is not None:
            self.order.free(Range.of(tensor), COMPUTE)
        self._release(tensor)
        self.held_bytes -= aligned(tensor.numel())

    def staging(self, num_bytes: int) -> torch.Tensor:
        """A host buffer that copies to this card read fastest from; uint8 (num_bytes,)."""
        with torch.inference_mode(False):  # it is written to in and out of inference mode
            return self._staging(num_bytes)

    # --- events and copies -------------------------------------------------------------------
    def event(self, name: str) -> Event:
        return Event(name, self._make_event())

    def record(self, event: Event, stream: str) -> None:
        self._record(event, stream)
        event.recorded, event.error = True, None
        if self.order is not None:
            self.order.record(event, stream)

    def wait(self, event: Event, stream: str, charge_to: str = "") -> None:
        """Order ``stream`` behind ``event``; a late one charges its stall to the label."""
        if event.error is not None:
            raise event.error
        if not event.recorded:
            raise StateError(
                f"{stream} stream would wait for {event.name}, which was never recorded: "
                "a card ignores such a wait and reads whatever is there"
            )
        if self.order is not None:
            self.order.wait(event, stream)
        self._wait(event, stream, charge_to)

    def copy(
        self, destination: torch.Tensor, source: torch.Tensor, unit: str, charge_to: str
    ) -> None:
        """Queue host-to-card bytes on the copy stream; both uint8, 1-D, contiguous, equal length.

        The caller keeps ``source`` alive until an event recorded afterwards has passed.
        """
        assert destination.dtype == source.dtype == torch.uint8
        assert destination.numel() == source.numel()
        if self.order is not None:
            self.order.write(Range.of(destination), COPY, unit)
        timing = self.timing(charge_to)
        timing.copied_bytes += source.numel()
        self._copy(destination, source, charge_to)

    @contextmanager
    def reading(self, unit: str, *tensors: torch.Tensor) -> Iterator[None]:
        """The compute stream reads these ranges until the end of the block (a unit's call)."""
        ranges = [Range.of(tensor) for tensor in tensors]
        if self.order is None:
            yield
            return
        for where in ranges:
            self.order.read(where, COMPUTE, unit)
        try:
            yield
        finally:
            for where in ranges:
                self.order.read(where, COMPUTE, unit)

    def passed(self, event: Event) -> bool:
        """Whether the work before ``event`` is done; True orders the host behind it."""
        done = event.recorded and self._passed(event)
        if done and self.order is not None:
            self.order.host_wait(event)
        return done

    def host_wait(self, event: Event) -> None:
        """Block the host until ``event``. Load and drain only."""
        if not event.recorded:
            raise StateError(f"the host would wait for {event.name}, which was never recorded")
        if self.order is not None:
            self.order.host_wait(event)  # what failed is over, too
        if event.error is not None:
            raise event.error
        self._host_wait(event)

    def now(self) -> float:
        """Seconds on the clock that this card's times are measured with."""
        return time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Charge computation to a virtual clock; every other card ignores it."""
        return

    # --- timings -----------------------------------------------------------------------------
    def timing(self, label: str) -> Timing:
        return self.timings.setdefault(label, Timing())

    def take_timings(self) -> dict[str, Timing]:
        """What was measured since the last call, by label; unfinished measurements stay."""
        taken, self.timings = self.timings, {}
        return taken

    def moment(self) -> Any:
        """Where the compute stream is now; on a card of one clock, what time it is."""
        return self.now()

    def laps(self, moments: Sequence[Any]) -> list[float]:
        """Seconds from each moment to the next. The host waits for the last: after a request."""
        return [then - first for first, then in pairwise(moments)]

    # --- the card's own ----------------------------------------------------------------------
    def _staging(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    @abstractmethod
    def _allocate(self, num_bytes: int, label: str) -> torch.Tensor: ...

    @abstractmethod
    def _release(self, tensor: torch.Tensor) -> None: ...

    @abstractmethod
    def _make_event(self) -> Any: ...

    @abstractmethod
    def _record(self, event: Event, stream: str) -> None: ...

    @abstractmethod
    def _wait(self, event: Event, stream: str, charge_to: str) -> None: ...

    @abstractmethod
    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None: ...

    @abstractmethod
    def _passed(self, event: Event) -> bool: ...

    @abstractmethod
    def _host_wait(self, event: Event) -> None: ...
