"""Other plans for units that are attached already: a survey would see their placeholders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from offload import Lifetime, ResidencyPlan
from tests.offload.nets import F, P, S

PLANS = {
    "permanent": [P],
    "forward": [F],
    "streamed": [S],
    "mixed thirds": [P, F, S],
    "the other thirds": [S, P, F],
    "one permanent": [S, S, P, S],
}


def other_plan(
    plan: ResidencyPlan, lifetimes: Sequence[Lifetime], *, trunk: Lifetime | None = None
) -> ResidencyPlan:
    """One lifetime for all layers, or one each, repeated to length, in every component."""
    return other_plans(plan, {c.name: lifetimes for c in plan.components}, trunk=trunk)


def other_plans(
    plan: ResidencyPlan,
    lifetimes: Mapping[str, Sequence[Lifetime]],
    *,
    trunk: Lifetime | None = None,
) -> ResidencyPlan:
    """The same by component; those that are not named stay as they are."""
    components = []
    for component in plan.components:
        if component.name in lifetimes:
            layers = tuple(
                replace(layer, lifetime=lifetime)
                for layer, lifetime in zip(
                    component.layers, cycle(lifetimes[component.name]), strict=False
                )
            )
            own = trunk or (P if all(layer.lifetime is P for layer in layers) else F)
            component = replace(
                component, layers=layers, trunk=replace(component.trunk, lifetime=own)
            )
        components.append(component)
    return replace(plan, components=tuple(components))


def host_bytes(plan: ResidencyPlan) -> int:
    """Of the host copies: all that is lent."""
    return sum(c.bytes_with(F) + c.bytes_with(S) for c in plan.components)


def on_the_card(plan: ResidencyPlan) -> dict[str, int]:
    """The ledger between requests: permanent units and buffers, each under its own label."""
    held = {}
    for component in plan.components:
        held[f"{component.name}/permanent/buffers"] = component.buffer_bytes
        for unit in component.units:
            held[f"{component.name}/permanent/{unit.name}"] = (
                unit.num_bytes if unit.lifetime is P else 0
            )
    return {label: num_bytes for label, num_bytes in held.items() if num_bytes}
