"""What a decision says for itself, in the words that users read.

Sentences only: what was chosen, what more would have needed, what is left, what does not fit. The
words of the engine (arming, window, arena) stay out of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from offload.facts import Budget, ComponentFacts
from offload.plan import ComponentPlan, Lifetime, ResidencyPlan, UnitPlan
from offload.sizes import format_bytes

_PLACES = {
    Lifetime.PERMANENT: ("stay on the card", "stays on the card"),
    Lifetime.FORWARD: ("are on the card while it runs", "is on the card while it runs"),
    Lifetime.STREAMED: ("are streamed", "is streamed"),
}


def describe(plan: ComponentPlan) -> str:
    """``40 of 66 layers and the trunk stay on the card (9.18 GiB), 26 are streamed (6.20 GiB)``."""
    total = f" of {len(plan.layers)} layers"
    parts = []
    for lifetime in Lifetime:
        held = sum(layer.lifetime is lifetime and not _is_idle(layer) for layer in plan.layers)
        trunk = plan.trunk.lifetime is lifetime
        if held or trunk:
            parts.append(_part(plan, lifetime, f"{held}{total}" if held else ""))
            total = "" if held else total  # said once
    idle = [layer for layer in plan.layers if _is_idle(layer)]
    if idle:
        size = format_bytes(sum(layer.num_bytes for layer in idle))
        parts.append(f"{len(idle)}{total} {_verb(len(idle))} not used by a usual request ({size})")
    return ", ".join(parts)


def why(plan: ComponentPlan, larger_bytes: int | None, left_bytes: int) -> str:
    """One sentence; ``larger_bytes``: the next better choice falls short by, None if none is."""
    more = "no other choice would be better"
    if larger_bytes is not None:
        more = f"the next larger choice would need {format_bytes(larger_bytes)} more"
    return f"{describe(plan)}; {more}; {format_bytes(left_bytes)} of the budget are left"


def pinned(facts: ComponentFacts) -> str:
    """The notice about units that stay because they cannot be lent; "" where there are none."""
    held = [unit for unit in (facts.trunk, *facts.layers) if unit.pinned_to_card]
    if not held:
        return ""
    first = "the trunk" if held[0] is facts.trunk else held[0].name
    names = first + (f" and {len(held) - 1} more" if len(held) > 1 else "")
    stay = "stays" if len(held) == 1 else "stay"
    size = format_bytes(sum(unit.num_bytes for unit in held))
    return f"{facts.name}: {names} {stay} on the card ({size}): {held[0].pinned_to_card}"


def shrunk(need_bytes: int, budget: Budget, lost: Sequence[ComponentPlan]) -> str:
    """The one warning: wish, need and choice."""
    return f"{_misfit(need_bytes, budget, lost)}. Chosen instead: {_plans(lost)}"


def refused(
    need_bytes: int, budget: Budget, lost: Sequence[ComponentPlan], nearest: ResidencyPlan
) -> str:
    """What ``refuse`` says: the missing bytes and the nearest plan that fits."""
    return (
        f"{_misfit(need_bytes, budget, lost)}. The nearest plan that fits: "
        f"{_plans(nearest.components)}. "
        "Take it with when_it_does_not_fit: shrink, ask for fewer layers, or free card memory"
    )


def too_small(leanest: ResidencyPlan, facts: Mapping[str, ComponentFacts]) -> str:
    """No plan at all: the component that needs most, the missing bytes and the smallest help."""
    largest = max(leanest.components, key=leanest.running_bytes_of)
    missing = leanest.peak_bytes - leanest.budget.num_bytes
    return (
        f"{largest.name} does not fit even with every layer streamed: the card must hold "
        f"{format_bytes(leanest.peak_bytes)} while it runs, "
        f"{format_bytes(leanest.budget.num_bytes)} are free, {_missing(missing)}. "
        f"The smallest help: {', or '.join(_helps(leanest, largest, facts[largest.name]))}"
    )


def _helps(plan: ResidencyPlan, largest: ComponentPlan, facts: ComponentFacts) -> list[str]:
    """A setting that is enough, then fewer pixels, then bytes; the smallest change first."""
    helps = [
        f"turn {setting} on for {facts.name} ({setting} would free {format_bytes(freed)})"
        for setting, freed in freed_by(facts)
        if _with_activations(plan, largest, facts.activation_bytes - freed).fits
    ]
    if _with_activations(plan, largest, 0).fits:
        spare = plan.budget.num_bytes - _with_activations(plan, largest, 0).standing_bytes
        spare -= plan.running_bytes_of(replace(largest, activation_bytes=0))
        helps.append(
            f"make fewer pixels at once: of the {format_bytes(facts.activation_bytes)} of "
            f"activations of {facts.name} {format_bytes(spare)} fit"
        )
    missing = plan.peak_bytes - plan.budget.num_bytes
    return [*helps, f"free {format_bytes(missing)} more on the card or use a larger one"]


def freed_by(facts: ComponentFacts) -> list[tuple[str, int]]:
    """Setting that is off -> the bytes of activations that it would save."""
    saved = [(name, facts.activation_bytes - held) for name, held in facts.activation_with]
    return [(name, freed) for name, freed in saved if freed > 0]


def _with_activations(plan: ResidencyPlan, one: ComponentPlan, num_bytes: int) -> ResidencyPlan:
    other = replace(one, activation_bytes=num_bytes)
    return replace(plan, components=tuple(other if c is one else c for c in plan.components))


def _misfit(need_bytes: int, budget: Budget, lost: Sequence[ComponentPlan]) -> str:
    wishes = "; ".join(f"{plan.name}: {plan.wish}" for plan in lost)
    return (
        f"the wish does not fit ({wishes}): it needs {format_bytes(need_bytes)}, "
        f"{format_bytes(budget.num_bytes)} are free, {_missing(need_bytes - budget.num_bytes)}"
    )


def _missing(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({format_bytes(num_bytes)}) are missing"


def _plans(plans: Sequence[ComponentPlan]) -> str:
    return "; ".join(f"{plan.name}: {describe(plan)}" for plan in plans)


def _is_idle(layer: UnitPlan) -> bool:
    return layer.lifetime is Lifetime.STREAMED and not layer.used


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _part(plan: ComponentPlan, lifetime: Lifetime, layers: str) -> str:
    """What is held with one lifetime."""
    trunk = plan.trunk.lifetime is lifetime
    if not plan.layers:
        held = ["it"]
    else:
        held = [words for words in (layers, "the trunk" if trunk else "") if words]
    several = len(held) > 1 or (held[0] == layers and layers.split()[0] != "1")
    units = (unit for unit in plan.units if unit.lifetime is lifetime and not _is_idle(unit))
    size = format_bytes(sum(unit.num_bytes for unit in units))
    return f"{' and '.join(held)} {_PLACES[lifetime][not several]} ({size})"
