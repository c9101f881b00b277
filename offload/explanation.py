"""A plan in the words that users read: every component, the budget, what is predicted and measured.

The same text stands in ``tenure plan``, the log and ``/fleet``. It decides and measures nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from offload.facts import ComponentFacts
from offload.measured import Measured
from offload.plan import ComponentPlan, ResidencyPlan
from offload.reasons import freed_by
from offload.schedule import Prediction, predict
from offload.sizes import format_bytes, format_rate


def explain(
    plan: ResidencyPlan,
    facts: Sequence[ComponentFacts] = (),
    measured: Measured | None = None,
) -> str:
    """A line per component, the budget, the warnings; with ``facts`` the prediction too.

    With ``measured`` what a request was seen to need stands beside what was predicted of it.
    """
    known = {one.name: one for one in facts}
    lines = [_component(one, known.get(one.name)) for one in plan.components]
    budget = plan.budget
    lines.append(
        f"budget: {format_bytes(plan.peak_bytes)} of {format_bytes(budget.num_bytes)} at the peak, "
        f"{format_bytes(plan.standing_bytes)} between requests; "
        f"host to card at {format_rate(budget.copy_bytes_per_s)}."
    )
    if facts:
        lines.append(_prediction(plan, facts))
    if measured is not None:
        lines.append(_measurement(measured))
    return "\n".join([*lines, *(f"warning: {warning}" for warning in plan.warnings)])


def predicted(plan: ResidencyPlan, facts: Sequence[ComponentFacts]) -> dict[str, Any]:
    """Seconds and bytes of a request; with compute unmeasured, the seconds are of transfers."""
    parts = _parts(plan, facts)
    return {
        "request_s": sum(part.request_s for part in parts.values()),
        "h2d_bytes": sum(part.h2d_bytes for part in parts.values()),
        "peak_bytes": plan.peak_bytes,
    }


def _parts(plan: ResidencyPlan, facts: Sequence[ComponentFacts]) -> Mapping[str, Prediction]:
    rate = plan.budget.copy_bytes_per_s
    return {one.name: predict(one, plan[one.name], rate) for one in facts}


def _component(plan: ComponentPlan, facts: ComponentFacts | None) -> str:
    words = [plan.why, *_gaps(plan)]
    if facts is not None and facts.activation_bytes:
        source = f" ({facts.activation_source})" if facts.activation_source else ""
        words.append(f"activations take {format_bytes(facts.activation_bytes)}{source}")
        words += [f"{name} would free {format_bytes(freed)}" for name, freed in freed_by(facts)]
    words += [] if plan.wish == "auto" else [f"asked for: {plan.wish}"]
    return f"{plan.name}: {'; '.join(words)}."


def _gaps(plan: ComponentPlan) -> list[str]:
    """What happens between its runs, where it lends anything."""
    if not plan.gap_components or not plan.lends:
        return []
    meanwhile = f"while {' and '.join(plan.gap_components)} {_run(plan.gap_components)}"
    if plan.held_through_gaps:
        return [f"what is lent stays {meanwhile}"]
    return [f"what is lent leaves {meanwhile}, and is moved again"]


def _run(names: Sequence[str]) -> str:
    return "runs" if len(names) == 1 else "run"


def _prediction(plan: ResidencyPlan, facts: Sequence[ComponentFacts]) -> str:
    parts = _parts(plan, facts)
    seconds = sum(part.request_s for part in parts.values())
    moved = format_bytes(sum(part.h2d_bytes for part in parts.values()))
    line = f"predicted: {seconds:.3f} s and {moved} copied a request"
    line += f", {format_bytes(plan.peak_bytes)} at the peak"
    unmeasured = [name for name, part in parts.items() if not part.compute_s]
    if len(unmeasured) == len(parts):
        line += "; compute is not measured yet, so these are the seconds of copies alone"
    elif unmeasured:
        line += f"; compute of {', '.join(unmeasured)} is not measured yet and not counted"
    return f"{line}."


def _measurement(measured: Measured) -> str:
    source = f" ({measured.source})" if measured.source else ""
    return (
        f"measured:  {measured.seconds:.3f} s a request, "
        f"{format_bytes(measured.peak_bytes)} at the peak{source}."
    )
