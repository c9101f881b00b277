"""Predicted time of a component's request under a plan, on a virtual clock that follows the engine.

One link carries every copy, in the order in which the engine queues them. Forward units arrive once
a request, gated on entries; streamed ones arrive for every call, into a window of ``places`` that
wraps to the next pass. It knows no memory and no events: pacing and seconds only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offload.facts import ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime
from offload.sizes import MIB

LOOKAHEAD_UNITS = 2
LOOKAHEAD_BYTES = 256 * MIB
_SAME_S = 1e-9  # two passes alike within this are the steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one component costs a request; ``request_s`` covers its compute and what it waited for."""

    request_s: float
    compute_s: float
    h2d_bytes: int

    @property
    def stall_s(self) -> float:
        return self.request_s - self.compute_s


class Arrival(NamedTuple):
    """A call that needs a copy; ``before_s`` is computed first, by units that are already there."""

    before_s: float
    copy_s: float
    compute_s: float
    streamed: bool


class Program(NamedTuple):
    """One pass: its arrivals in order, and what is computed after the last of them."""

    arrivals: list[Arrival]
    after_s: float


def lookahead_units(sizes: Sequence[int]) -> int:
    """How many copies may be ready at a time: the fewest, two or more, that hold 256 MiB."""
    total = 0
    for count, num_bytes in enumerate(sizes, start=1):
        total += num_bytes
        if count >= LOOKAHEAD_UNITS and total >= LOOKAHEAD_BYTES:
            return count
    return max(LOOKAHEAD_UNITS, len(sizes))


def predict(facts: ComponentFacts, plan: ComponentPlan, copy_bytes_per_s: float) -> Prediction:
    """The engine's schedule of one request of this component."""
    lifetimes = [unit.lifetime for unit in plan.units]
    units = (facts.trunk, *facts.layers)
    compute_s = facts.passes * sum(unit.compute_s * _calls(facts, unit) for unit in units)
    h2d_bytes = sum(
        _copies(facts, unit, lifetime) * unit.num_bytes
        for unit, lifetime in zip(units, lifetimes, strict=True)
    )
    if compute_s == 0 or h2d_bytes == 0:  # one of the two never waits
        seconds = compute_s + h2d_bytes / copy_bytes_per_s
        return Prediction(request_s=seconds, compute_s=compute_s, h2d_bytes=h2d_bytes)
    calls = list(_calls_of_a_pass(facts, lifetimes))
    used = sum(first and lifetime is Lifetime.STREAMED for _, lifetime, first in calls)
    places = min(plan.window, used)
    sizes = [unit.num_bytes for unit, lifetime, first in calls if _moves(lifetime, first)]
    clock = _Clock(places=places, lookahead=lookahead_units(sizes))
    clock.first_pass(_program(calls, copy_bytes_per_s, first_pass=True))
    clock.later_passes(_program(calls, copy_bytes_per_s, first_pass=False), facts.passes - 1)
    return Prediction(request_s=clock.now_s, compute_s=compute_s, h2d_bytes=h2d_bytes)


# --- what a pass consists of -----------------------------------------------------------------
_Call = tuple[UnitFacts, Lifetime, bool]  # the last: whether it is the unit's first call in a pass


def _calls(facts: ComponentFacts, unit: UnitFacts) -> int:
    """Calls a pass; the trunk is there, and counted, once for the whole of it."""
    return min(1, unit.uses) if unit is facts.trunk else unit.uses


def _copies(facts: ComponentFacts, unit: UnitFacts, lifetime: Lifetime) -> int:
    """Copies a request; a unit that is not used is never moved."""
    if lifetime is Lifetime.PERMANENT:
        return 0
    calls = _calls(facts, unit)
    return min(1, calls) if lifetime is Lifetime.FORWARD else calls * facts.passes


def _moves(lifetime: Lifetime, first: bool) -> bool:
    return lifetime is Lifetime.STREAMED or (lifetime is Lifetime.FORWARD and first)


def _calls_of_a_pass(facts: ComponentFacts, lifetimes: Sequence[Lifetime]) -> Iterator[_Call]:
    """Trunk first, then the layers in order; those used n times come in the first n rounds."""
    if facts.trunk.uses:
        yield facts.trunk, lifetimes[0], True
    for done in range(max((layer.uses for layer in facts.layers), default=0)):
        for layer, lifetime in zip(facts.layers, lifetimes[1:], strict=True):
            if layer.uses > done:
                yield layer, lifetime, done == 0


def _program(calls: Sequence[_Call], copy_bytes_per_s: float, *, first_pass: bool) -> Program:
    """Fold the calls that need no copy into the seconds before the next one that does."""
    arrivals: list[Arrival] = []
    before_s = 0.0
    for unit, lifetime, first in calls:
        if _moves(lifetime, first and first_pass):
            copy_s = unit.num_bytes / copy_bytes_per_s
            streamed = lifetime is Lifetime.STREAMED
            arrivals.append(Arrival(before_s, copy_s, unit.compute_s, streamed))
            before_s = 0.0
        else:
            before_s += unit.compute_s
    return Program(arrivals, before_s)


# --- the virtual clock -----------------------------------------------------------------------
@dataclass(slots=True)
class _Clock:
    """Two lines of time: the computation's and the link's."""

    places: int  # of the window
    lookahead: int
    now_s: float = 0.0
    link_s: float = 0.0  # when the link is free
    entered_s: list[float] = field(default_factory=list)  # of each arrival of the first pass
    left_s: list[float] = field(default_factory=list)  # of each streamed call so far
    ready_s: dict[int, float] = field(default_factory=dict)  # arrival of the first pass -> its bytes

    def first_pass(self, program: Program) -> None:
        queue = _Queue(self, program.arrivals)
        for index, call in enumerate(program.arrivals):
            queue.top_up()
            self.now_s = max(self.now_s + call.before_s, self.ready_s[index])
            self.entered_s.append(self.now_s)
            queue.top_up()
            self.now_s += call.compute_s
            if call.streamed:
                self.left_s.append(self.now_s)
        self.now_s += program.after_s

    def later_passes(self, program: Program, num_passes: int) -> None:
        """Only streamed units are left, so copies run in order; stop once a pass repeats itself."""
        last: tuple[float, ...] = ()
        for done in range(num_passes):
            start_s = self.now_s
            self._later_pass(program)
            state = self._state(start_s)
            if last and all(abs(a - b) <= _SAME_S for a, b in zip(last, state, strict=True)):
                self.now_s += (num_passes - done - 1) * (self.now_s - start_s)
                return
            last = state

    def _later_pass(self, program: Program) -> None:
        now_s, link_s, left_s, places = self.now_s, self.link_s, self.left_s, self.places
        for before_s, copy_s, compute_s, _ in program.arrivals:
            free_s = left_s[-places]
            link_s = (free_s if free_s > link_s else link_s) + copy_s
            now_s += before_s
            now_s = (link_s if link_s > now_s else now_s) + compute_s
            left_s.append(now_s)
        self.now_s, self.link_s = now_s + program.after_s, link_s

    def _state(self, start_s: float) -> tuple[float, ...]:
        """All that the next pass depends on, as seen from now."""
        now_s = self.now_s
        ends = self.left_s[-self.places :] if self.places else []
        return (now_s - start_s, now_s - self.link_s, *(now_s - end_s for end_s in ends))


class _Queue:
    """Which copy the engine queues next, in the first pass, where forward units arrive too."""

    def __init__(self, clock: _Clock, arrivals: Sequence[Arrival]) -> None:
        self._clock = clock
        self._arrivals = arrivals
        self._forward = [i for i, call in enumerate(arrivals) if not call.streamed][::-1]
        self._streamed = [i for i, call in enumerate(arrivals) if call.streamed][::-1]
        self._num_streamed_sent = 0

    def top_up(self) -> None:
        """In order of execution, but a forward unit may overtake a streamed one that has no place."""
        while self._forward or self._streamed:
            forward_first = not self._streamed or (
                bool(self._forward) and self._forward[-1] < self._streamed[-1]
            )
            if not forward_first and self._has_place():
                self._send_streamed()
            elif self._forward and self._is_near(self._forward[-1]):
                self._send_forward()
            else:
                return

    def _has_place(self) -> bool:
        return self._num_streamed_sent < len(self._clock.left_s) + self._clock.places

    def _is_near(self, index: int) -> bool:
        return index < len(self._clock.entered_s) + self._clock.lookahead

    def _send_streamed(self) -> None:
        before = self._num_streamed_sent - self._clock.places  # the call that held the place
        self._send(self._streamed.pop(), self._clock.left_s[before] if before >= 0 else 0.0)
        self._num_streamed_sent += 1

    def _send_forward(self) -> None:
        index = self._forward.pop()
        gate = index - self._clock.lookahead
        self._send(index, self._clock.entered_s[gate] if gate >= 0 else 0.0)

    def _send(self, index: int, not_before_s: float) -> None:
        clock = self._clock
        clock.link_s = max(clock.link_s, not_before_s) + self._arrivals[index].copy_s
        clock.ready_s[index] = clock.link_s
