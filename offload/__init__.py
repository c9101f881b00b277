"""The door of the residency library: which weights stay on the card, for how long, and moving them.

Names resolve when they are first used, so that planning on a laptop never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.cards import Card as Card
    from offload.cards import SimulatedCard as SimulatedCard
    from offload.cards import allocator_settings as allocator_settings
    from offload.cards import detect_card as detect_card
    from offload.cards import is_out_of_memory as is_out_of_memory
    from offload.cards import is_sticky as is_sticky
    from offload.cards import list_cards as list_cards
    from offload.errors import CardError as CardError
    from offload.errors import DoesNotFitError as DoesNotFitError
    from offload.errors import OffloadError as OffloadError
    from offload.errors import OrderError as OrderError
    from offload.errors import SpecError as SpecError
    from offload.errors import StateError as StateError
    from offload.explanation import explain as explain
    from offload.explanation import predicted as predicted
    from offload.facts import Budget as Budget
    from offload.facts import CardFacts as CardFacts
    from offload.facts import ComponentFacts as ComponentFacts
    from offload.facts import UnitFacts as UnitFacts
    from offload.facts_json import facts_from_dict as facts_from_dict
    from offload.facts_json import facts_to_dict as facts_to_dict
    from offload.live_ledger import LiveLedger as LiveLedger
    from offload.measured import ComponentMeasured as ComponentMeasured
    from offload.measured import Measured as Measured
    from offload.measured import for_steps as for_steps
    from offload.measured import with_live_bytes as with_live_bytes
    from offload.measured import with_measured as with_measured
    from offload.pin_budget import PinBudget as PinBudget
    from offload.plan import ComponentPlan as ComponentPlan
    from offload.plan import Lifetime as Lifetime
    from offload.plan import Policy as Policy
    from offload.plan import ResidencyPlan as ResidencyPlan
    from offload.planner import plan_residency as plan_residency
    from offload.report import RequestUsage as RequestUsage
    from offload.report import Snapshot as Snapshot
    from offload.report import plan_to_dict as plan_to_dict
    from offload.report import readiness_line as readiness_line
    from offload.residency import Residency as Residency
    from offload.sizes import format_bytes as format_bytes
    from offload.sizes import parse_bytes as parse_bytes
    from offload.sizes import parse_rate as parse_rate
    from offload.spec import GROUPS as GROUPS
    from offload.spec import ComponentSpec as ComponentSpec
    from offload.spec import ResidencySpec as ResidencySpec
    from offload.survey import survey_component as survey_component
    from offload.survey import survey_components as survey_components
    from offload.wish import with_known as with_known

_HOMES = {
    "GROUPS": "offload.spec",
    "Budget": "offload.facts",
    "Card": "offload.cards",
    "CardError": "offload.errors",
    "CardFacts": "offload.facts",
    "ComponentFacts": "offload.facts",
    "ComponentMeasured": "offload.measured",
    "ComponentPlan": "offload.plan",
    "ComponentSpec": "offload.spec",
    "DoesNotFitError": "offload.errors",
    "Lifetime": "offload.plan",
    "LiveLedger": "offload.live_ledger",
    "Measured": "offload.measured",
    "OffloadError": "offload.errors",
    "OrderError": "offload.errors",
    "PinBudget": "offload.pin_budget",
    "Policy": "offload.plan",
    "RequestUsage": "offload.report",
    "Residency": "offload.residency",
    "ResidencyPlan": "offload.plan",
    "ResidencySpec": "offload.spec",
    "SimulatedCard": "offload.cards",
    "Snapshot": "offload.report",
    "SpecError": "offload.errors",
    "StateError": "offload.errors",
    "UnitFacts": "offload.facts",
    "allocator_settings": "offload.cards",
    "detect_card": "offload.cards",
    "explain": "offload.explanation",
    "facts_from_dict": "offload.facts_json",
    "facts_to_dict": "offload.facts_json",
    "for_steps": "offload.measured",
    "format_bytes": "offload.sizes",
    "is_out_of_memory": "offload.cards",
    "is_sticky": "offload.cards",
    "list_cards": "offload.cards",
    "parse_bytes": "offload.sizes",
    "parse_rate": "offload.sizes",
    "plan_residency": "offload.planner",
    "plan_to_dict": "offload.report",
    "predicted": "offload.explanation",
    "readiness_line": "offload.report",
    "survey_component": "offload.survey",
    "survey_components": "offload.survey",
    "with_known": "offload.wish",
    "with_live_bytes": "offload.measured",
    "with_measured": "offload.measured",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'offload' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
