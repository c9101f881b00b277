"""One component's stay on the card within a request: its forward arena, its window, its copies.

It follows the run protocol: allocate and wait for birth at begin; issue in expected order, at most
the lookahead ready; wait for single units; refill a place behind its last reader; at the end
order every copy before the memory goes back. It does not know what comes between runs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from offload.cards.base import Event
from offload.plan import Lifetime
from offload.report import ComponentUsage
from offload.transfer import Loan, Transfer
from offload.unit import Unit, UnitState
from offload.window import Window


@dataclass(slots=True)
class Run:
    """Made by ``begin``; ended exactly once by ``end``, whatever happened between."""

    component: str
    transfer: Transfer
    trunk: Unit
    units: Sequence[Unit]  # trunk first; permanent ones too, for their place in the order
    window_bytes: int
    places: int
    usage: ComponentUsage
    arena: Loan | None = None
    ring: Loan | None = None
    spare: dict[Unit, Loan] = field(default_factory=dict)  # places outside a busy ring
    window: Window[Unit] = field(init=False)
    calling: set[Unit] = field(default_factory=set)  # inside their own call now
    fresh: set[Unit] = field(default_factory=set)  # brought in, not used yet: wasted if never used
    _offsets: dict[Unit, int] = field(default_factory=dict)
    _issued: set[Unit] = field(default_factory=set)  # forward units on their way or there

    def begin(self) -> None:
        """Allocate; on failure nothing is held. The trunk is issued and bound for the whole run."""
        self.window = Window(self.window_bytes, self.places)
        total = 0
        for unit in self.units:
            if unit.lifetime is Lifetime.FORWARD:
                self._offsets[unit] = total
                total += unit.num_bytes
        try:
            if total:
                self.arena = self._open(total, "forward")
            if self.window_bytes:
                self.ring = self._open(self.window_bytes, "streamed")
            if self.trunk.lifetime is Lifetime.FORWARD and self.trunk.num_bytes:
                self.bring(self.trunk, [])
                self.arrive(self.trunk)
                self.fresh.discard(self.trunk)
        except BaseException:
            self.end()
            raise

    def _open(self, num_bytes: int, lifetime: str) -> Loan:
        return self.transfer.open(num_bytes, f"{self.component}/{lifetime}", self.component)

    # --- bringing in -------------------------------------------------------------------------
    @property
    def held_bytes(self) -> int:
        """Card memory of this run, whether or not its copies have landed."""
        loans = [*self.spare.values(), self.ring, self.arena]
        return sum(loan.memory.numel() for loan in loans if loan is not None)

    def has(self, unit: Unit) -> bool:
        """Whether the unit's bytes are on the card or on their way."""
        if unit.lifetime is Lifetime.PERMANENT or unit.num_bytes == 0:
            return True
        return unit in self._issued or unit in self.spare or self.window.holds(unit)

    def bring(self, unit: Unit, gates: list[Event]) -> bool:
        """Issue the unit's copy if it has a place; False while the window is busy."""
        if unit.lifetime is Lifetime.FORWARD:
            assert self.arena is not None
            self._issued.add(unit)
            self._issue(unit, self.arena, self._offsets[unit], gates)
            return True
        taken = self.window.take(unit, unit.num_bytes)
        if taken is None:
            return False
        start, overwritten = taken
        assert self.ring is not None
        readers = [event for gone in overwritten if (event := self.transfer.free_of(gone))]
        self._issue(unit, self.ring, start, [*gates, *readers])
        return True

    def bring_on_the_spot(self, unit: Unit) -> None:
        """A unit that nobody expected: evict what is needed last, else a place of its own."""
        self.usage.on_the_spot += 1
        if self.bring(unit, []):
            return
        for other in reversed(self.window.busy):  # issued last, needed last
            if other not in self.calling:
                self.evict(other)
                if self.bring(unit, []):
                    return
        loan = self._open(unit.num_bytes, f"streamed/{unit.name}")
        self.spare[unit] = loan
        self._issue(unit, loan, 0, [])

    def evict(self, unit: Unit) -> None:
        """Give up a unit that was brought and not used; the copy stream orders its copy."""
        self.window.drop(unit)
        self._count_wasted(unit)

    def _issue(self, unit: Unit, loan: Loan, start: int, after: list[Event]) -> None:
        place = loan.memory[start : start + unit.num_bytes]
        self.transfer.issue(unit, loan, place, after)
        self.usage.copied_bytes += unit.num_bytes
        self.fresh.add(unit)

    # --- using -------------------------------------------------------------------------------
    def arrive(self, unit: Unit) -> None:
        """Order the computation behind the unit's copy and bind its parameters."""
        if unit.lifetime is Lifetime.PERMANENT or unit.num_bytes == 0:
            return
        self.transfer.arrive(unit, self.component)
        if unit.state is not UnitState.BOUND:
            unit.bind(self.place_of(unit))

    def place_of(self, unit: Unit) -> torch.Tensor:
        """Card memory of a unit, uint8 (num_bytes,)."""
        if unit.memory is not None:
            return unit.memory
        if unit in self.spare:
            return self.spare[unit].memory
        loan = self.arena if unit.lifetime is Lifetime.FORWARD else self.ring
        start = (
            self._offsets.get(unit, 0)
            if unit.lifetime is Lifetime.FORWARD
            else self.window.start_of(unit)
        )
        assert loan is not None
        return loan.memory[start : start + unit.num_bytes]

    def left(self, unit: Unit) -> None:
        """A streamed unit's call ended: its place may be refilled behind it."""
        if unit.lifetime is not Lifetime.STREAMED or unit.state is not UnitState.BOUND:
            return
        self.transfer.left(unit)
        unit.release()
        spare = self.spare.pop(unit, None)
        if spare is None:
            self.window.leave(unit)
        else:
            unit.forget()
            self.transfer.close(spare)

    # --- the end -----------------------------------------------------------------------------
    def end(self) -> None:
        """Order every issued copy, bind placeholders, drop views, free the memory. Idempotent."""
        for unit in self.units:
            if unit.lifetime is not Lifetime.PERMANENT:
                if unit.state is UnitState.BOUND:
                    unit.release()
                unit.forget()
            self.transfer.forget(unit)
        for unit in list(self.fresh):
            self._count_wasted(unit)
        self._issued.clear()
        loans = [*self.spare.values(), self.ring, self.arena]
        self.spare, self.ring, self.arena = {}, None, None
        with ExitStack() as closing:  # every loan is closed, whatever closing another one raises
            for loan in loans:
                if loan is not None:
                    closing.callback(self.transfer.close, loan)

    def _count_wasted(self, unit: Unit) -> None:
        if unit in self.fresh:
            self.fresh.discard(unit)
            self.usage.wasted_bytes += unit.num_bytes
