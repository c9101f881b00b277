"""Measures a placed pipeline, plans again from what was seen, and keeps the better of two plans.

It knows no pipeline: how a picture is drawn is given. Whatever fails for lack of memory puts the
first plan back in force.
"""

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from deployments.records import Record
from deployments.trial import NUM_DRAWINGS, Trial, slower
from offload import (
    Budget,
    Card,
    ComponentFacts,
    ComponentPlan,
    Measured,
    Residency,
    ResidencyPlan,
    ResidencySpec,
    for_steps,
    format_bytes,
    is_out_of_memory,
    plan_residency,
    predicted,
    with_live_bytes,
    with_measured,
)

PROBE_STEPS = 3  # the first fills caches, the others tell what a further one costs
Draw = Callable[[], float]  # one probe in a request of its own; seconds of a usual request
NO_TRIAL = Trial(seconds=(), peak_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a calibration came to."""

    measured: Measured  # scaled to the usual number of steps
    predicted_s: float  # of a usual request, by the plan in force
    measured_s: float  # the same, drawn
    peak_bytes: int  # predicted, by the plan in force
    measured_peak_bytes: int  # the same, by a ledger or the allocator
    kept: bool = True  # False: the plan from measurements was taken back
    reason: str = ""  # why
    from_record: bool = False

    @property
    def record(self) -> Record:
        return Record(
            measured=self.measured,
            kept=self.kept,
            reason=self.reason,
            seconds=self.measured_s,
            peak_bytes=self.measured_peak_bytes,
        )

    def to_dict(self) -> dict[str, Any]:
        """What ``/fleet`` shows of it."""
        shown = asdict(self)
        del shown["measured"]
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Of the probe, and of a usual request."""

    probe: int
    usual: int


class Calibration:
    """Of one residency, right after its first warm-up. Runs on the owner thread."""

    def __init__(
        self, residency: Residency, spec: ResidencySpec, draw: Draw, steps: Steps, source: str
    ) -> None:
        """``source`` says where the figures come from: ``measured at 128x128``."""
        self._residency = residency
        self._spec = spec
        self._draw = draw
        self._steps = steps
        self._source = source

    def run(self) -> Outcome:
        """Afterwards the plan that it names is in force; DoesNotFitError where none holds."""
        residency, first = self._residency, self._residency.plan
        known = residency.facts
        measured = for_steps(self._measure(), known, self._steps.probe, self._steps.usual)
        facts = with_measured(known, measured)
        plan = plan_residency(self._spec, facts, budget_of(residency.card, measured))
        if same_placement(first, plan):
            residency.apply(plan)
            once = Trial(seconds=(self._draw(),), peak_bytes=measured.peak_bytes)
            return self._outcome(facts, measured, once)
        if measured.peak_bytes > plan.budget.num_bytes:  # the first plan is not to be gone back to
            residency.apply(plan)
            return self._outcome(facts, measured, self._trial(self._peak_bytes()))
        before = self._trial(measured.peak_bytes)
        trial, reason = self._try(plan, before)
        if reason:
            residency.apply(first)
        return self._outcome(facts, measured, before if reason else trial, reason)

    def _measure(self) -> Measured:
        """Seconds from one request and bytes from another: counting bytes takes time."""
        return with_live_bytes(self._measured(live=False), self._measured(live=True))

    def _measured(self, *, live: bool) -> Measured:
        with self._residency.measuring(source=self._source, live=live) as probe:
            self._draw()
        return probe.measured()

    def _peak_bytes(self) -> int:
        return self._measured(live=True).peak_bytes

    def _trial(self, peak_bytes: int) -> Trial:
        seconds = tuple(self._draw() for _ in range(NUM_DRAWINGS))
        return Trial(seconds=seconds, peak_bytes=peak_bytes)

    def _try(self, plan: ResidencyPlan, before: Trial) -> tuple[Trial, str]:
        """The plan in force, what it costs, and why it is not to be kept."""
        trial, said = self._attempt(plan)
        if said:  # the error's frames, which hold activations, are gone by now
            gc.collect()
            self._residency.card.empty_cache()
            return before, f"it does not hold: {said}"
        return trial, slower(before, trial)

    def _attempt(self, plan: ResidencyPlan) -> tuple[Trial, str]:
        try:
            self._residency.apply(plan)
            peak_bytes, budget_bytes = self._peak_bytes(), plan.budget.num_bytes
            if peak_bytes > budget_bytes:
                need = f"{format_bytes(peak_bytes)} are needed at the peak"
                return NO_TRIAL, f"{need}, {format_bytes(budget_bytes)} are there"
            return self._trial(peak_bytes), ""
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return NO_TRIAL, str(error).splitlines()[0]

    def _outcome(
        self,
        facts: tuple[ComponentFacts, ...],
        measured: Measured,
        trial: Trial,
        reason: str = "",
    ) -> Outcome:
        self._residency.facts = facts
        ahead = predicted(self._residency.plan, facts)
        return Outcome(
            measured=measured,
            predicted_s=ahead["request_s"],
            measured_s=trial.median_s,
            peak_bytes=ahead["peak_bytes"],
            measured_peak_bytes=trial.peak_bytes,
            kept=not reason,
            reason=reason,
        )


def budget_of(card: Card, measured: Measured | None = None) -> Budget:
    """What is free now and what we hold already, over the link as it was measured."""
    budget = Budget.of(card.facts(), own_bytes=card.usage().reserved_bytes)
    if measured is None or not measured.copy_bytes_per_s:
        return budget
    return replace(budget, copy_bytes_per_s=measured.copy_bytes_per_s)


def same_placement(one: ResidencyPlan, other: ResidencyPlan) -> bool:
    """Whether both hold the same for as long, so that neither can be faster."""
    return [_placement(plan) for plan in one.components] == [
        _placement(plan) for plan in other.components
    ]


def _placement(plan: ComponentPlan) -> tuple[object, ...]:
    lifetimes = tuple(unit.lifetime for unit in plan.units)
    return plan.name, lifetimes, plan.window, plan.held_through_gaps


def describe(outcome: Outcome) -> str:
    """One line for the log and the fleet page."""
    seen = f"predicted {outcome.predicted_s:.3f} s a request, measured {outcome.measured_s:.3f} s"
    if outcome.kept:
        how = "taken from the record" if outcome.from_record else "made from measurements"
        return f"the plan is {how}: {seen}"
    return f"the plan from measurements was taken back, {outcome.reason}; {seen}"
