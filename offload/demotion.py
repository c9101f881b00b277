"""What to give up after the card ran out of memory: half of a forward set. Pure; moves nothing."""

from dataclasses import replace

from offload.plan import ComponentPlan, Lifetime, ResidencyPlan


def halved(plan: ResidencyPlan, name: str) -> ResidencyPlan | None:
    """The same plan with half as many forward layers of one component; None where none can go.

    The earliest stay, so that a run starts at once; the rest are streamed. Where half frees
    nothing, because the window costs as much, all of them go.
    """
    component = plan[name]
    before = plan.running_bytes_of(component)
    count = _num_forward(component)
    for keep in sorted({count // 2, 0}, reverse=True):
        if keep < count:
            smaller = _keeping(component, keep)
            if plan.running_bytes_of(smaller) < before:
                others = (smaller if c.name == name else c for c in plan.components)
                return replace(plan, components=tuple(others))
    return None


def say_halved(component: ComponentPlan) -> str:
    """What was given up, and the line that plans so from the start."""
    name, count = component.name, component.resident_layers
    return (
        f"{name} now keeps {count} of {len(component.layers)} layers while it runs and streams "
        f"the rest; `{name}: {{resident_layers: {count}}}` in components plans so from the start"
    )


def _num_forward(component: ComponentPlan) -> int:
    return sum(layer.lifetime is Lifetime.FORWARD for layer in component.layers)


def _keeping(component: ComponentPlan, keep: int) -> ComponentPlan:
    layers, seen = [], 0
    for layer in component.layers:
        if layer.lifetime is Lifetime.FORWARD:
            seen += 1
            if seen > keep:
                layer = replace(layer, lifetime=Lifetime.STREAMED)
        layers.append(layer)
    resident = sum(layer.lifetime is not Lifetime.STREAMED for layer in layers)
    why = f"{resident} of {len(layers)} layers stay or are held since the card ran out of memory"
    return replace(component, layers=tuple(layers), why=why)
