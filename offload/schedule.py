"""Predicted time of a component's request under a plan, on a virtual clock that follows the engine.

One link carries every copy, in the order in which the engine queues them. Forward units arrive once
a run, gated on entries; streamed ones arrive for every call, into a window that wraps to the next
pass. It knows no memory and no events: order and seconds only. Places of the window count as
alike; where layers differ much in size the engine may find one free a little later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from offload.facts import ComponentFacts
from offload.plan import ComponentPlan, Lifetime
from offload.sizes import MIB
from offload.workload import FORWARD, PERMANENT, STREAMED, Program, Use, Workload

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
    layers = zip(facts.layers, plan.layers, strict=True)
    use = Use(
        [planned.lifetime for layer, planned in layers if layer.uses],
        plan.trunk.lifetime,
        plan.window,
        plan.held_through_gaps,
    )
    return predict_use(Workload(facts, copy_bytes_per_s), use, copy_bytes_per_s)


def predict_use(work: Workload, use: Use, copy_bytes_per_s: float) -> Prediction:
    """The same for a component in one of the ways to hold it."""
    h2d_bytes = work.moved_bytes(use)
    seconds = work.compute_s + h2d_bytes / copy_bytes_per_s
    if work.compute_s and h2d_bytes:  # else neither of the two ever waits for the other
        seconds = _seconds(work, use)
    return Prediction(request_s=seconds, compute_s=work.compute_s, h2d_bytes=h2d_bytes)


def _seconds(work: Workload, use: Use) -> float:
    """The request's first run, with its first pass, and then the others, which are alike."""
    first, *others = work.runs_of(use)
    seconds = _run_s(work, use, first, begins=True)
    for num_passes in sorted(set(others)):
        a_run_s = _run_s(work, use, num_passes, begins=False)
        seconds += others.count(num_passes) * a_run_s
    return seconds


def _run_s(work: Workload, use: Use, num_passes: int, *, begins: bool) -> float:
    """One run; ``begins`` where its first pass is the request's first."""
    moving = [n for n, own in zip(work.sizes, use.lifetimes, strict=True) if own is not PERMANENT]
    places = min(use.window, use.lifetimes.count(STREAMED))
    clock = _Clock(places=places, lookahead=lookahead_units(moving))
    clock.link_s = 0.0 if use.trunk is PERMANENT else work.trunk_copy_s
    # The run begins when the trunk is there; the first layers' copies follow meanwhile.
    clock.now_s = clock.link_s + (work.trunk_first_s if begins else work.trunk_later_s)
    compute_s = work.first_s if begins else work.later_s
    clock.first_round(work.copy_s, compute_s, use.lifetimes)
    clock.repeat(work.rest_of_pass(use, compute_s), 1)
    if num_passes > 1:
        clock.repeat(work.later_pass(use), num_passes - 1)
    return clock.now_s


# --- the virtual clock -----------------------------------------------------------------------
@dataclass(slots=True)
class _Clock:
    """Two lines of time: the computation's and the link's."""

    places: int  # of the window
    lookahead: int
    now_s: float = 0.0
    link_s: float = 0.0  # when the link is free
    left_s: list[float] = field(default_factory=list)  # by streamed calls so far

    def first_round(
        self, copy_s: Sequence[float], compute_s: Sequence[float], lifetimes: Sequence[Lifetime]
    ) -> None:
        """Every used layer once; forward units arrive."""
        if STREAMED in lifetimes and FORWARD in lifetimes[lifetimes.index(STREAMED) :]:
            self._first_round_overtaking(copy_s, compute_s, lifetimes)
            return
        # No forward unit comes after a streamed one, so that none can overtake: all go in order.
        now_s, link_s, left_s, places = self.now_s, self.link_s, self.left_s, self.places
        entered_s, lookahead = list[float](), self.lookahead
        for index, lifetime in enumerate(lifetimes):
            if lifetime is FORWARD:
                free_s = entered_s[index - lookahead] if index >= lookahead else 0.0
                link_s = (free_s if free_s > link_s else link_s) + copy_s[index]
                now_s = link_s if link_s > now_s else now_s
            elif lifetime is STREAMED:
                free_s = left_s[-places] if len(left_s) >= places else 0.0
                link_s = (free_s if free_s > link_s else link_s) + copy_s[index]
                now_s = (link_s if link_s > now_s else now_s) + compute_s[index]
                left_s.append(now_s)
                continue
            entered_s.append(now_s)
            now_s += compute_s[index]
        self.now_s, self.link_s = now_s, link_s

    def _first_round_overtaking(
        self, copy_s: Sequence[float], compute_s: Sequence[float], lifetimes: Sequence[Lifetime]
    ) -> None:
        queue = _Queue(self, copy_s, lifetimes)
        queue.top_up()
        now_s, ready_s = self.now_s, queue.ready_s
        for index, lifetime in enumerate(lifetimes):
            if lifetime is not PERMANENT:
                there_s = ready_s[index]
                now_s = there_s if there_s > now_s else now_s
            queue.entered_s.append(now_s)
            queue.top_up()
            now_s += compute_s[index]
            if lifetime is STREAMED:
                self.left_s.append(now_s)
                queue.top_up()
        self.now_s = now_s

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

    def __init__(
        self, clock: _Clock, copy_s: Sequence[float], lifetimes: Sequence[Lifetime]
    ) -> None:
        self._clock = clock
        self._copy_s = copy_s
        # Layers still to be sent, the next one last.
        last_first = range(len(lifetimes) - 1, -1, -1)
        self._forward = [i for i in last_first if lifetimes[i] is FORWARD]
        self._streamed = [i for i in last_first if lifetimes[i] is STREAMED]
        self._num_streamed_sent = 0
        self.entered_s: list[float] = []  # by layers so far
        self.ready_s = [0.0] * len(lifetimes)  # layer -> its copy is there

    def top_up(self) -> None:
        """In order of execution, but a forward unit may overtake a streamed one without a place."""
        clock, forward, streamed = self._clock, self._forward, self._streamed
        free = len(clock.left_s) + clock.places - self._num_streamed_sent
        near = len(self.entered_s) + clock.lookahead
        while forward or streamed:
            if free and streamed and not (forward and forward[-1] < streamed[-1]):
                before = self._num_streamed_sent - clock.places  # the call that held the place
                self._send(streamed.pop(), clock.left_s[before] if before >= 0 else 0.0)
                self._num_streamed_sent += 1
                free -= 1
            elif forward and forward[-1] < near:
                gate = forward[-1] - clock.lookahead
                self._send(forward.pop(), self.entered_s[gate] if gate >= 0 else 0.0)
            else:
                return

    def _send(self, index: int, not_before_s: float) -> None:
        clock = self._clock
        link_s = clock.link_s
        link_s = (not_before_s if not_before_s > link_s else link_s) + self._copy_s[index]
        clock.link_s = self.ready_s[index] = link_s
