"""What would be decided for a model on a card, without the card.

Knows how to survey a model and to ask the planner; prints nothing and places nothing.
"""

from dataclasses import dataclass, replace
from typing import Any

from deployments.config import AppConfig
from offload import (
    Budget,
    CardFacts,
    ComponentFacts,
    DoesNotFitError,
    ResidencyPlan,
    plan_residency,
    plan_to_dict,
    predicted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The plan of one model on one card."""

    card: CardFacts
    facts: tuple[ComponentFacts, ...]
    plan: ResidencyPlan
    wish_fits: bool  # False: the plan keeps only part of what was asked

    def to_dict(self) -> dict[str, Any]:
        """``{card, components, predicted}``, and what was said to the user."""
        return {
            "card": card_to_dict(self.card),
            "components": plan_to_dict(self.plan)["components"],
            "predicted": predicted(self.plan, self.facts),
            "wish_fits": self.wish_fits,
            "warnings": list(self.plan.warnings),
        }


def card_to_dict(card: CardFacts) -> dict[str, Any]:
    return {
        "name": card.name,
        "memory_bytes": card.memory_bytes,
        "free_bytes": card.free_bytes,
        "reserve_bytes": card.reserve_bytes,
        "copy_bytes_per_s": card.copy_bytes_per_s,
        "simulated": card.simulated,
    }


def survey_model(config: AppConfig) -> tuple[ComponentFacts, ...]:
    """Units and bytes of every component; loads the model on the host."""
    from deployments.pipeline import load_pipeline  # late: it imports torch and diffusers
    from offload import survey_component, with_known

    pipeline = load_pipeline(config.model, config.components)
    facts = (survey_component(module, name) for name, module in pipeline.components.items())
    return with_known(facts, config.activation_bytes, config.passes)


def foresee(config: AppConfig, facts: tuple[ComponentFacts, ...], card: CardFacts) -> Foresight:
    """The plan that a replica on this card begins with; DoesNotFitError where there is none."""
    spec, budget = config.to_spec(), Budget.of(card)
    plan = plan_residency(spec, facts, budget)
    try:
        plan_residency(replace(spec, when_it_does_not_fit="refuse"), facts, budget)
        wish_fits = True
    except DoesNotFitError:
        wish_fits = False
    return Foresight(card=card, facts=facts, plan=plan, wish_fits=wish_fits)
