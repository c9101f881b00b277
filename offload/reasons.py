"""What a decision says for itself, in the words that users read.

Sentences only: what was chosen, what more would have needed, what is left, what does not fit. The
words of the engine (arming, window, arena) stay out of them.
"""

from collections.abc import Sequence

from offload.choice import Candidate, peak_bytes
from offload.facts import Budget, ComponentFacts
from offload.plan import ComponentPlan, Lifetime
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
        held = sum(layer.lifetime is lifetime for layer in plan.layers)
        trunk = plan.trunk.lifetime is lifetime
        if held or trunk:
            parts.append(_part(plan, lifetime, f"{held}{total}" if held else ""))
            total = "" if held else total  # said once
    return ", ".join(parts)


def why(chosen: Candidate, others: Sequence[Candidate], larger: int | None, budget: Budget) -> str:
    """One sentence; ``larger`` is what the next better choice falls short by, None if none is."""
    left = budget.num_bytes - peak_bytes([chosen, *others])
    more = "no other choice would be faster"
    if larger is not None:
        more = f"the next faster choice would need {format_bytes(larger)} more"
    return f"{describe(chosen.plan)}; {more}; {format_bytes(left)} of the budget are left"


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


def shrunk(need_bytes: int, budget: Budget, lost: Sequence[Candidate]) -> str:
    """The one warning: wish, need and choice."""
    return f"{_misfit(need_bytes, budget, lost)}. Chosen instead: {_plans(lost)}"


def refused(
    need_bytes: int, budget: Budget, lost: Sequence[Candidate], nearest: Sequence[Candidate]
) -> str:
    """What ``refuse`` says: the missing bytes and the nearest plan that fits."""
    return (
        f"{_misfit(need_bytes, budget, lost)}. The nearest plan that fits: {_plans(nearest)}. "
        "Take it with when_it_does_not_fit: shrink, ask for fewer layers, or free card memory"
    )


def too_small(smallest: Sequence[Candidate], budget: Budget) -> str:
    """No plan at all: the component that needs most, the missing bytes and the smallest help."""
    largest = max(smallest, key=lambda pick: pick.running_bytes)
    need = peak_bytes(smallest)
    missing = need - budget.num_bytes
    plan = largest.plan
    help_text = f"free {format_bytes(missing)} more on the card or use a larger one"
    if plan.activation_bytes >= missing:
        help_text += (
            f", or save as much of the {format_bytes(plan.activation_bytes)} of activations of "
            f"{plan.name} (smaller images, tiling, slicing)"
        )
    return (
        f"{plan.name} does not fit even with every layer streamed: the card must hold "
        f"{format_bytes(need)} while it runs, {format_bytes(budget.num_bytes)} are free, "
        f"{_missing(missing)}. The smallest help: {help_text}"
    )


def _misfit(need_bytes: int, budget: Budget, lost: Sequence[Candidate]) -> str:
    wishes = "; ".join(f"{pick.plan.name}: {pick.plan.wish}" for pick in lost)
    return (
        f"the wish does not fit ({wishes}): it needs {format_bytes(need_bytes)}, "
        f"{format_bytes(budget.num_bytes)} are free, {_missing(need_bytes - budget.num_bytes)}"
    )


def _missing(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({format_bytes(num_bytes)}) are missing"


def _plans(picks: Sequence[Candidate]) -> str:
    return "; ".join(f"{pick.plan.name}: {describe(pick.plan)}" for pick in picks)


def _part(plan: ComponentPlan, lifetime: Lifetime, layers: str) -> str:
    """What is held with one lifetime."""
    trunk = plan.trunk.lifetime is lifetime
    if not plan.layers:
        held = ["it"]
    else:
        held = [words for words in (layers, "the trunk" if trunk else "") if words]
    several = len(held) > 1 or (held[0] == layers and layers.split()[0] != "1")
    size = format_bytes(plan.bytes_with(lifetime))
    return f"{' and '.join(held)} {_PLACES[lifetime][not several]} ({size})"
