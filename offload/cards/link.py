"""The simulated link from host to card: copies that land in order, late, and never early.

A copy has a deadline on a clock; its bytes are poison until then, and move at the first wait at or
after it. The link knows nothing of events: it counts copies, and a wait names the last it needs.
"""

import threading
from collections import deque
from dataclasses import dataclass

import torch

from offload.cards.clocks import SimulationClock
from offload.cards.intervals import Range

POISON = 0xFF  # every float format reads it as NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy on its way."""

    number: int
    destination: torch.Tensor  # card, 1D uint8
    source: torch.Tensor  # host, 1D uint8; held until it has landed
    label: str
    deadline_s: float


class Link:
    """One copy engine: first in, first out. Bytes land when the host waits for them."""

    def __init__(self, clock: SimulationClock, bytes_per_s: float) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self.num_issued = 0
        self.num_landed = 0
        self.free_at_s = 0.0  # no copy starts before: the last one, or an event, is in the way
        self._pending: deque[Transfer] = deque()
        self._faults: dict[int, BaseException] = {}  # number of a copy -> how it will fail
        self._errors: dict[int, BaseException] = {}  # number of a copy -> how it failed

    def issue(self, destination: torch.Tensor, source: torch.Tensor, label: str) -> float:
        """Queue a copy; returns the seconds for which it holds the link."""
        destination.fill_(POISON)
        seconds = source.numel() / self.bytes_per_s
        self.free_at_s = max(self.free_at_s, self.clock.now()) + seconds
        self.num_issued += 1
        self._pending.append(
            Transfer(
                number=self.num_issued,
                destination=destination,
                source=source,
                label=label,
                deadline_s=self.free_at_s,
            )
        )
        return seconds

    def not_before(self, time_s: float) -> None:
        """The copy stream waits for something that happens at ``time_s``."""
        self.free_at_s = max(self.free_at_s, time_s)

    def land_through(self, number: int) -> float:
        """Wait for every copy up to ``number``; returns the seconds that were waited."""
        waited_s = 0.0
        while self._pending and self._pending[0].number <= number:
            waited_s += self.clock.wait_until(self._pending[0].deadline_s)
            self._land_first()
        return waited_s

    def land_due(self) -> None:
        """Land what is over by now; waits for nothing."""
        while self._pending and self._pending[0].deadline_s <= self.clock.now():
            self._land_first()

    def in_flight(self, where: Range) -> Transfer | None:
        """A copy that has yet to land in these bytes."""
        for transfer in list(self._pending):
            target = Range.of(transfer.destination)
            if target.start < where.end and where.start < target.end:
                return transfer
        return None

    def fail(self, error: BaseException, after: int) -> None:
        """Let one copy fail when it lands: the next, or the one ``after`` that many more."""
        self._faults[self.num_issued + 1 + after] = error

    def error_within(self, first: int, last: int) -> BaseException | None:
        """How the first failed copy of ``first..last`` failed; told once."""
        for number in range(first, last + 1):
            if number in self._errors:
                return self._errors.pop(number)
        return None

    def _land_first(self) -> None:
        transfer = self._pending[0]
        try:
            if transfer.number in self._faults:
                raise self._faults.pop(transfer.number)
            transfer.destination.copy_(transfer.source)
        except BaseException as error:  # kept for whoever waits: a failed copy must not look landed
            self._errors[transfer.number] = error
        self._pending.popleft()
        self.num_landed = transfer.number


class ThreadedLink(Link):
    """Lands copies on a thread of its own, some time after their deadline, as a card does.

    The thread lives while copies are pending, so nothing has to be closed.
    """

    LATE_BY_S = 0.002

    def __init__(self, clock: SimulationClock, bytes_per_s: float) -> None:
        super().__init__(clock, bytes_per_s)
        self._landed = threading.Condition()
        self._running = False

    def issue(self, destination: torch.Tensor, source: torch.Tensor, label: str) -> float:
        with self._landed:
            seconds = super().issue(destination, source, label)
            if not self._running:
                self._running = True
                threading.Thread(target=self._land_all, name="simulated-link", daemon=True).start()
        return seconds

    def land_through(self, number: int) -> float:
        began_s = self.clock.now()
        with self._landed:
            self._landed.wait_for(lambda: self.num_landed >= min(number, self.num_issued))
        return self.clock.now() - began_s

    def land_due(self) -> None:
        """The thread does it."""

    def _land_all(self) -> None:
        while True:
            with self._landed:
                if not self._pending:
                    self._running = False
                    return
                deadline_s = self._pending[0].deadline_s
            self.clock.wait_until(deadline_s + self.LATE_BY_S)
            with self._landed:
                self._land_first()
                self._landed.notify_all()
