"""What would be decided for a model on a card, without the card and without the model.

Knows how to ask the planner; prints nothing, places nothing, and imports no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from deployments.config import AppConfig
from deployments.surveys import Survey
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
    notices: tuple[str, ...] = ()  # about the facts

    def to_dict(self) -> dict[str, Any]:
        """``{card, components, predicted}``, and what was said to the user."""
        return {
            "card": card_to_dict(self.card),
            "components": plan_to_dict(self.plan)["components"],
            "predicted": predicted(self.plan, self.facts),
            "wish_fits": self.wish_fits,
            "warnings": [*self.notices, *self.plan.warnings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A card on which nothing fits."""

    card: CardFacts
    why: str
    wish_fits: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"card": card_to_dict(self.card), "wish_fits": False, "why": self.why}


def card_to_dict(card: CardFacts) -> dict[str, Any]:
    return {
        "name": card.name,
        "memory_bytes": card.memory_bytes,
        "free_bytes": card.free_bytes,
        "reserve_bytes": card.reserve_bytes,
        "copy_bytes_per_s": card.copy_bytes_per_s,
        "simulated": card.simulated,
    }


def foresee(config: AppConfig, survey: Survey, card: CardFacts) -> Foresight:
    """The plan that a replica on this card begins with; DoesNotFitError where there is none."""
    spec, budget = config.to_spec(), Budget.of(card)
    try:
        plan = plan_residency(replace(spec, when_it_does_not_fit="refuse"), survey.facts, budget)
        wish_fits = True
    except DoesNotFitError:
        plan = plan_residency(spec, survey.facts, budget)
        wish_fits = False
    return Foresight(
        card=card, facts=survey.facts, plan=plan, wish_fits=wish_fits, notices=survey.warnings
    )


def foresee_each(
    config: AppConfig, survey: Survey, cards: Iterable[CardFacts]
) -> list[Foresight | Misfit]:
    """One answer a card, also where there is no plan."""
    return [_foresee_or_not(config, survey, card) for card in cards]


def _foresee_or_not(config: AppConfig, survey: Survey, card: CardFacts) -> Foresight | Misfit:
    try:
        return foresee(config, survey, card)
    except DoesNotFitError as error:
        return Misfit(card=card, why=str(error))
