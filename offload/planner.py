"""The planner: from wish, facts and budget to the plan of one card. A pure function.

[Note: more memory is never slower] The choice is exact, over candidates that do not depend on the
bytes that are free. A larger budget therefore has every choice of a smaller one, and more. First
the wish is kept, then the predicted request is fast, then few bytes move, then little is held.
"""

from collections.abc import Sequence
from dataclasses import replace

from offload import reasons
from offload.candidates import candidates, lost_of, num_steps
from offload.choice import Candidate, choose, peak_bytes, smallest
from offload.errors import DoesNotFitError
from offload.facts import Budget, ComponentFacts
from offload.plan import ResidencyPlan
from offload.spec import ComponentSpec, ResidencySpec
from offload.wish import resolve_wishes

_Options = list[list[Candidate]]


def plan_residency(
    spec: ResidencySpec, facts: Sequence[ComponentFacts], budget: Budget
) -> ResidencyPlan:
    """Decide what stays on the card and for how long.

    SpecError on a wish that cannot be meant; DoesNotFitError where nothing fits, or nothing that
    keeps the wish and the user said ``refuse``.
    """
    wishes, warnings = resolve_wishes(spec, facts)
    options = _options(facts, wishes, budget, kept=True)
    picks = choose(options, budget.num_bytes)
    if picks is None:
        need_bytes = peak_bytes(smallest(options))
        options = _options(facts, wishes, budget, kept=False)
        picks = _shrink(options, budget)
        lost = [pick for pick in picks if lost_of(pick.cost)]
        if spec.when_it_does_not_fit == "refuse":
            raise DoesNotFitError(reasons.refused(need_bytes, budget, lost, picks))
        warnings = (*warnings, reasons.shrunk(need_bytes, budget, lost))
    components = tuple(
        replace(pick.plan, why=_why(index, picks, options, budget))
        for index, pick in enumerate(picks)
    )
    notices = tuple(notice for one in facts if (notice := reasons.pinned(one)))
    return ResidencyPlan(components=components, budget=budget, warnings=(*warnings, *notices))


def _options(
    facts: Sequence[ComponentFacts],
    wishes: dict[str, ComponentSpec],
    budget: Budget,
    *,
    kept: bool,
) -> _Options:
    return [
        candidates(one, wishes[one.name], budget, num_steps(one, facts), kept=kept) for one in facts
    ]


def _shrink(options: _Options, budget: Budget) -> tuple[Candidate, ...]:
    """What keeps most of the wish, of all that fits."""
    picks = choose(options, budget.num_bytes)
    if picks is None:
        raise DoesNotFitError(reasons.too_small(smallest(options), budget))
    return picks


def _why(index: int, picks: tuple[Candidate, ...], options: _Options, budget: Budget) -> str:
    chosen = picks[index]
    others = picks[:index] + picks[index + 1 :]
    better = (c for c in options[index] if c.cost < chosen.cost)
    need = min((peak_bytes([c, *others]) for c in better), default=None)
    larger = None if need is None else need - budget.num_bytes
    return reasons.why(chosen, others, larger, budget)
