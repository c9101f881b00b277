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

    ``unknown`` (its activations were never measured) lets nothing be held beside it.
    """
    held = {c.name: plan.running_bytes_of(c.plan) - c.plan.activation_bytes for c in others}
    room = plan.budget.num_bytes - plan.standing_bytes - adopted_bytes
    needed = plan.running_bytes_of(component.plan)
    for other in others:
        if other.passing is None and (unknown or sum(held.values()) + needed > room):
            del held[other.name]
            yield other
