"""The only owner of copies, and of the events that order them. It knows units, not components.

[Note: four waits] Host order never orders two streams, so each hazard has one event:
born        the copy stream must not overwrite memory that kernels of its last owner still use
free        a window place must not be refilled while its last reader still runs
ready       the computation must not read a unit before its bytes are there; never wait for more
last_copy   memory must not go back to the allocator while a copy still writes to it
"""

from dataclasses import dataclass, field

import torch

from offload.cards.base import COMPUTE, COPY, Card, Event
from offload.host_store import pieces
from offload.unit import Unit


@dataclass(slots=True, eq=False)
class Loan:
    """Card memory of one run, with the event that ends its copies."""

    label: str
    charge_to: str
    born: Event
    last_copy: Event
    memory: torch.Tensor  # card, uint8 1-D


@dataclass(slots=True)
class _UnitEvents:
    ready: Event
    free: Event
    entered: Event
    awaited: bool = True  # whether compute has waited for the last copy


@dataclass(slots=True)
class Transfer:
    """Opens loans, issues copies into them, lets the computation wait for single units."""

    card: Card
    _events: dict[Unit, _UnitEvents] = field(default_factory=dict)

    def open(self, num_bytes: int, label: str, charge_to: str) -> Loan:
        """Allocate with the compute stream current; the copy stream waits for the birth."""
        memory = self.card.allocate(num_bytes, label)
        loan = Loan(
            label,
            charge_to,
            self.card.event(f"born {label}"),
            self.card.event(f"last copy {label}"),
            memory,
        )
        self.card.record(loan.born, COMPUTE)
        self.card.wait(loan.born, COPY)
        return loan

    def issue(self, unit: Unit, loan: Loan, place: torch.Tensor, after: list[Event]) -> None:
        """Queue a unit's host copy into its place, behind ``after`` (free places, pacing gates)."""
        assert unit.host is not None, f"{unit.name} has no host copy"
        for event in after:
            self.card.wait(event, COPY)
        events = self._of(unit)
        for piece in pieces(unit.host):
            self.card.copy(place[piece], unit.host[piece], unit.name, loan.charge_to)
        self.card.record(events.ready, COPY)
        self.card.record(loan.last_copy, COPY)
        events.awaited = False

    def arrive(self, unit: Unit, charge_to: str) -> None:
        """Let the computation wait for this unit alone, once per arrival."""
        events = self._of(unit)
        if not events.awaited:
            self.card.wait(events.ready, COMPUTE, charge_to)
            events.awaited = True

    def entered(self, unit: Unit) -> None:
        self.card.record(self._of(unit).entered, COMPUTE)

    def left(self, unit: Unit) -> None:
        """The last reader of the unit's place has been queued."""
        self.card.record(self._of(unit).free, COMPUTE)

    def gate_of(self, unit: Unit) -> Event | None:
        """The entry of ``unit``, if it was entered."""
        events = self._events.get(unit)
        return events.entered if events is not None and events.entered.recorded else None

    def free_of(self, unit: Unit) -> Event | None:
        """The end of the last call of ``unit``, if it had one in its present place."""
        events = self._events.get(unit)
        return events.free if events is not None and events.free.recorded else None

    def forget(self, unit: Unit) -> None:
        """End of a run: none of its events may satisfy a later wait, or keep an error alive."""
        events = self._events.pop(unit, None)
        if events is not None:
            events.ready.error = None

    def close(self, loan: Loan) -> None:
        """Order every copy before the end of the loan, then give its memory back. Nobody waits."""
        try:
            if loan.last_copy.recorded:
                self.card.wait(loan.last_copy, COMPUTE)
        finally:
            loan.last_copy.error = None  # its traceback holds frames that hold the memory
            self.card.release(loan.memory)

    def _of(self, unit: Unit) -> _UnitEvents:
        events = self._events.get(unit)
        if events is None:
            make = self.card.event
            events = _UnitEvents(
                make(f"ready {unit.name}"), make(f"free {unit.name}"), make(f"entered {unit.name}")
            )
            self._events[unit] = events
        return events
