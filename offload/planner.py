"""The planner: from wish, facts and budget to the plan of one card. A pure function.

First the wish is kept. Then, among plans within 1 % of the least predicted time, few bytes move,
then layers are lent rather than streamed, then little is held.

[Note: more memory is never slower] What is weighed does not depend on the bytes that are free. A
larger budget therefore has every choice of a smaller one, and more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from offload import reasons
from offload.candidates import Candidates
from offload.choice import peak_bytes
from offload.decision import Decision
from offload.errors import DoesNotFitError
from offload.facts import Budget, ComponentFacts
from offload.plan import ResidencyPlan
from offload.spec import ComponentSpec, ResidencySpec
from offload.wish import resolve_wishes
from offload.zoom import Zoom


def plan_residency(
    spec: ResidencySpec, facts: Sequence[ComponentFacts], budget: Budget
) -> ResidencyPlan:
    """Decide what stays on the card and for how long.

    SpecError on a wish that cannot be meant; DoesNotFitError where nothing fits, or nothing that
    keeps the wish and the user said ``refuse``.
    """
    wishes, warnings = resolve_wishes(spec, facts)
    weighers = _weighers(facts, wishes, budget, kept=True)
    zoom = Zoom(weighers, budget.num_bytes)
    choice = zoom.choice()
    if choice is None:
        need_bytes = peak_bytes(zoom.smallest())
        weighers = _weighers(facts, wishes, budget, kept=False)
        decision = _shrink(weighers, budget)
        if spec.when_it_does_not_fit == "refuse":
            raise DoesNotFitError(reasons.refused(need_bytes, budget, decision.lost, decision.plan))
        warnings = (*warnings, reasons.shrunk(need_bytes, budget, decision.lost))
    else:
        decision = Decision(weighers, choice.chosen, budget, choice.fastest)
    notices = tuple(notice for one in facts if (notice := reasons.pinned(one)))
    return replace(decision.explained(), warnings=(*warnings, *notices))


def _weighers(
    facts: Sequence[ComponentFacts],
    wishes: Mapping[str, ComponentSpec],
    budget: Budget,
    *,
    kept: bool,
) -> list[Candidates]:
    return [Candidates(one, wishes[one.name], budget, kept=kept) for one in facts]


def _shrink(weighers: Sequence[Candidates], budget: Budget) -> Decision:
    """What keeps most of the wish, of all that fits."""
    zoom = Zoom(weighers, budget.num_bytes)
    choice = zoom.choice()
    if choice is None:
        leanest = Decision(weighers, zoom.smallest(), budget)
        facts = {one.facts.name: one.facts for one in weighers}
        raise DoesNotFitError(reasons.too_small(leanest.plan, facts))
    return Decision(weighers, choice.chosen, budget, choice.fastest)
