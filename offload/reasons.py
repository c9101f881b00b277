"""What a decision says for itself, in the words that users read.

Sentences only: what was chosen, what more would have needed, what is left, what does not fit. The
words of the engine (arming, window, arena) stay out of them.
"""

from collections.abc import Sequence

from offload.choice import Candidate, peak_bytes
from offload.facts import Budget
from offload.plan import ComponentPlan, Lifetime
from offload.sizes import format_bytes

_PLACES = {
    Lifetime.PERMANENT: ("stay on the card", "stays on the card"),
    Lifetime.FORWARD: ("are on the card while it runs", "is on the card while it runs"),
    Lifetime.STREAMED: ("are streamed", "is streamed"),
}


def describe(plan: ComponentPlan) -> str:
    """``40 of 66 layers and the trunk stay on the card (9.18 GiB), 26 are streamed (6.2 GiB)``."""
    parts = [_part(plan, lifetime) for lifetime in Lifetime]
    return ", ".join(part for part in parts if part)


def why(chosen: Candidate, others: Sequence[Candidate], larger: int | None, budget: Budget) -> str:
    """One sentence; ``larger`` is what the next better choice falls short by, None if none is."""
    left = budget.num_bytes - peak_bytes([chosen, *others])
    more = "no other choice would be faster"
    if larger is not None:
        more = f"the next faster choice would need {format_bytes(larger)} more"
    return f"{describe(chosen.plan)}; {more}; {format_bytes(left)} of the budget are left"


def shrunk(need_bytes: int, budget: Budget, picks: Sequence[Candidate]) -> str:
    """The one warning: wish, need and choice. ``picks`` are those that lost some of their wish."""
    wishes = "; ".join(f"{pick.plan.name}: {pick.plan.wish}" for pick in picks)
    choices = "; ".join(f"{pick.plan.name}: {describe(pick.plan)}" for pick in picks)
    return (
        f"the wish ({wishes}) needs {format_bytes(need_bytes)} and {format_bytes(budget.num_bytes)} "
        f"are free, {format_bytes(need_bytes - budget.num_bytes)} short; chosen instead ({choices})"
    )


def refused(
    need_bytes: int, budget: Budget, lost: Sequence[Candidate], nearest: Sequence[Candidate]
) -> str:
    """What ``refuse`` says: the missing bytes and the nearest plan that fits."""
    wishes = "; ".join(f"{pick.plan.name}: {pick.plan.wish}" for pick in lost)
    plans = "; ".join(f"{pick.plan.name}: {describe(pick.plan)}" for pick in nearest)
    return (
        f"the wish ({wishes}) does not fit: it needs {format_bytes(need_bytes)} and "
        f"{format_bytes(budget.num_bytes)} are free, "
        f"{need_bytes - budget.num_bytes} bytes ({format_bytes(need_bytes - budget.num_bytes)}) are "
        f"missing. The nearest plan that fits is {plans}. Take it with when_it_does_not_fit: shrink, "
        "ask for fewer layers, or free memory on the card"
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
        f"{plan.name} does not fit even when all its layers are streamed: the card must hold "
        f"{format_bytes(need)} while it runs and {format_bytes(budget.num_bytes)} are free, "
        f"{missing} bytes ({format_bytes(missing)}) are missing. The smallest help: {help_text}"
    )


def _part(plan: ComponentPlan, lifetime: Lifetime) -> str:
    """What is held with one lifetime; empty where nothing is."""
    held = sum(layer.lifetime is lifetime for layer in plan.layers)
    trunk = plan.trunk.lifetime is lifetime
    if not held and not trunk:
        return ""
    size = format_bytes(plan.bytes_with(lifetime))
    if not plan.layers:
        return f"it {_PLACES[lifetime][1]} ({size})"
    words = [_layers(held, len(plan.layers))] if held else []
    words += ["the trunk"] if trunk else []
    single = held + trunk == 1
    return f"{' and '.join(words)} {_PLACES[lifetime][single]} ({size})"


def _layers(held: int, total: int) -> str:
    noun = "layer" if total == 1 else "layers"
    return f"all {total} {noun}" if held == total else f"{held} of {total} {noun}"
