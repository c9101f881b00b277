"""Whose run ends so that another component's fits the budget."""

from collections.abc import Iterator, Sequence

from offload.component import Component
from offload.plan import ResidencyPlan


def runs_to_end(
    plan: ResidencyPlan,
    component: Component,
    others: Sequence[Component],
    adopted_bytes: int,
    *,
    unknown: bool,
) -> Iterator[Component]:
    """Of ``others``, least recently used first, those that must go; never one that is running.

    A set that is not held through gaps goes at once; ``unknown`` (the activations of ``component``
    were never measured) lets nothing be held beside it.
    """
    held = {c.name: plan.lent_bytes_of(c.plan) for c in others}
    room = plan.budget.num_bytes - plan.standing_bytes - adopted_bytes
    needed = plan.lent_bytes_of(component.plan) + component.plan.activation_bytes
    for other in others:
        dropped = unknown or not other.plan.held_through_gaps
        if other.passing is None and (dropped or sum(held.values()) + needed > room):
            del held[other.name]
            yield other
