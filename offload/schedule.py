"""Predicted time of a component's request under a plan, on a virtual clock that follows the engine.

One link carries every copy, in the order in which the engine queues them. Forward units arrive once
a request, gated on entries; streamed ones arrive for every call, into a window that wraps to the
next pass. It knows no memory and no events: order and seconds only. Places of the window count as
alike; where layers differ much in size the engine may find one free a little later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from offload.facts import ComponentFacts
from offload.plan import ComponentPlan, Lifetime
from offload.sizes import MIB
from offload.workload import Call, Program, Workload

LOOKAHEAD_UNITS = 2
LOOKAHEAD_BYTES = 256 * MIB
_SAME_S = 1e-9  # two passes alike within this are the steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one component costs a request: ``request_s`` is its compute and its waiting."""

    request_s: float
    compute_s: float
    h2d_bytes: int

    @property
    def stall_s(self) -> float:
        return self.request_s - self.compute_s


def lookahead_units(sizes: Sequence[int]) -> int:
    """How many layers ahead a copy may be queued: as many as hold 256 MiB, and two at least."""
    mean = sum(sizes) // len(sizes) if sizes else 0
    return max(LOOKAHEAD_UNITS, LOOKAHEAD_BYTES // max(1, mean))


def predict(facts: ComponentFacts, plan: ComponentPlan, copy_bytes_per_s: float) -> Prediction:
    """The engine's schedule of one request of this component."""
    work = Workload(facts, plan, copy_bytes_per_s)
    seconds = work.compute_s + work.h2d_bytes / copy_bytes_per_s
    if work.compute_s and work.h2d_bytes:  # else neither of the two ever waits for the other
        seconds = _seconds(work)
    return Prediction(request_s=seconds, compute_s=work.compute_s, h2d_bytes=work.h2d_bytes)


def _seconds(work: Workload) -> float:
    sizes = [unit.num_bytes for unit, lifetime in work.layers if lifetime is not Lifetime.PERMANENT]
    clock = _Clock(places=work.places, lookahead=lookahead_units(sizes))
    clock.trunk_arrives(*work.trunk())
    clock.first_round(work.first_round())
    clock.repeat(work.program(work.rounds_after_first()), 1)
    clock.repeat(work.program(work.calls_of_a_pass()), work.passes - 1)
    return clock.now_s


# --- the virtual clock -----------------------------------------------------------------------
@dataclass(slots=True)
class _Clock:
    """Two lines of time: the computation's and the link's."""

    places: int  # of the window
    lookahead: int
    now_s: float = 0.0
    link_s: float = 0.0  # when the link is free
    entered_s: list[float] = field(default_factory=list)  # by layers of the first round
    left_s: list[float] = field(default_factory=list)  # by streamed calls so far
    ready_s: dict[int, float] = field(default_factory=dict)  # layer of the first round -> there

    def trunk_arrives(self, copy_s: float, compute_s: float) -> None:
        """The run begins when the trunk is there; the first layers' copies follow meanwhile."""
        self.link_s = copy_s
        self.now_s = copy_s + compute_s

    def first_round(self, calls: Sequence[Call]) -> None:
        queue = _Queue(self, calls)
        queue.top_up()
        for index, call in enumerate(calls):
            self.now_s = max(self.now_s, self.ready_s.get(index, 0.0))
            self.entered_s.append(self.now_s)
            queue.top_up()
            self.now_s += call.compute_s
            if call.lifetime is Lifetime.STREAMED:
                self.left_s.append(self.now_s)
                queue.top_up()

    def repeat(self, program: Program, times: int) -> None:
        """Only streamed units move now, so copies run in order; stop once a pass repeats itself."""
        last: tuple[float, ...] = ()
        for done in range(times):
            start_s = self.now_s
            self._later_pass(program)
            state = self._state(start_s)
            if last and all(abs(a - b) <= _SAME_S for a, b in zip(last, state, strict=True)):
                self.now_s += (times - done - 1) * (self.now_s - start_s)
                return
            last = state

    def _later_pass(self, program: Program) -> None:
        now_s, link_s, left_s, places = self.now_s, self.link_s, self.left_s, self.places
        for before_s, copy_s, compute_s in program.arrivals:
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
    """Which copy is queued next in the first round, where forward units arrive too."""

    def __init__(self, clock: _Clock, calls: Sequence[Call]) -> None:
        self._clock = clock
        self._calls = calls
        self._forward = self._pending(Lifetime.FORWARD)
        self._streamed = self._pending(Lifetime.STREAMED)
        self._num_streamed_sent = 0

    def _pending(self, lifetime: Lifetime) -> list[int]:
        """Layers still to be sent, the next one last."""
        return [i for i, call in enumerate(self._calls) if call.lifetime is lifetime][::-1]

    def top_up(self) -> None:
        """In order of execution, but a forward unit may overtake a streamed one without a place."""
        forward, streamed = self._forward, self._streamed
        places_so_far = len(self._clock.left_s) + self._clock.places
        near = len(self._clock.entered_s) + self._clock.lookahead
        while forward or streamed:
            streamed_first = streamed and not (forward and forward[-1] < streamed[-1])
            if streamed_first and self._num_streamed_sent < places_so_far:
                self._send_streamed(streamed.pop())
            elif forward and forward[-1] < near:
                self._send_forward(forward.pop())
            else:
                return

    def _send_streamed(self, index: int) -> None:
        before = self._num_streamed_sent - self._clock.places  # the call that held the place
        self._send(index, self._clock.left_s[before] if before >= 0 else 0.0)
        self._num_streamed_sent += 1

    def _send_forward(self, index: int) -> None:
        gate = index - self._clock.lookahead
        self._send(index, self._clock.entered_s[gate] if gate >= 0 else 0.0)

    def _send(self, index: int, not_before_s: float) -> None:
        clock = self._clock
        clock.link_s = max(clock.link_s, not_before_s) + self._calls[index].copy_s
        clock.ready_s[index] = clock.link_s
