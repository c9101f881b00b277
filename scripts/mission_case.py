"""The case that Tenure was made for: Qwen-Image-2.1 on five cards, under four wishes.

Planned from configuration files: no weight, no card, nothing measured here. What is shown of it is
made by ``scripts/mission_page.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from deployments.card_choice import card_facts
from deployments.config import AppConfig
from deployments.surveys import read_config, survey_model
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    DoesNotFitError,
    ResidencyPlan,
    ResidencySpec,
    plan_residency,
)

CONFIG = "configs/qwen-image-2.1.yaml"
SIZES = ("16GiB", "23.5GiB", "31.4GiB", "48GiB", "139GiB")  # free memory
SMALL, LARGE = "23.5GiB", "31.4GiB"
ASSUMED_S = 13.737  # of one request that copies next to nothing; the page names the source

Wish = Mapping[str, ComponentSpec]
ALL_FORWARD: Wish = {"all": ComponentSpec(resident_layers="all", lifetime="forward")}
ALL_PERMANENT: Wish = {"all": ComponentSpec(resident_layers="all", lifetime="permanent")}
FREE: Wish = {}


class Case:
    """One model, its wish and what is known of it."""

    def __init__(self, config: AppConfig, facts: Sequence[ComponentFacts]) -> None:
        self.config = config
        self.facts = tuple(facts)

    @property
    def wish(self) -> Wish:
        return self.config.to_spec().components

    @property
    def wishes(self) -> dict[str, Wish]:
        """As the page heads its columns."""
        wish = {"the wish": self.wish, "all forward": ALL_FORWARD, "all permanent": ALL_PERMANENT}
        return wish | {"the planner's choice": FREE}

    @property
    def wish_for_good(self) -> Wish:
        """The same layers, but all of them must stay."""
        return {name: replace(one, lifetime="permanent") for name, one in self.wish.items()}

    @cached_property
    def with_compute(self) -> tuple[ComponentFacts, ...]:
        """As if all of a request's seconds were those of the transformer's layers, alike."""
        return tuple(
            _computing(one, ASSUMED_S) if one.name == "transformer" else one for one in self.facts
        )

    def __getitem__(self, name: str) -> ComponentFacts:
        return next(one for one in self.facts if one.name == name)

    def budget(self, size: str) -> Budget:
        return Budget.of(card_facts(self.config.cards, size))

    def plan(
        self, wish: Wish, size: str, facts: Sequence[ComponentFacts] | None = None
    ) -> ResidencyPlan:
        """DoesNotFitError where it does not fit as it was written."""
        spec = ResidencySpec(components=wish, when_it_does_not_fit="refuse")
        return plan_residency(spec, facts or self.facts, self.budget(size))

    def with_activation(self, name: str, num_bytes: int) -> tuple[ComponentFacts, ...]:
        return tuple(
            replace(one, activation_bytes=num_bytes) if one.name == name else one
            for one in self.facts
        )

    def stays(self, size: str, facts: Sequence[ComponentFacts] | None = None) -> bool:
        """Whether every layer of the wish stays on the card."""
        plan = self.plan(self.wish, size, facts)
        return all(one.lifetime == "permanent" for one in plan.components)


def _computing(facts: ComponentFacts, request_s: float) -> ComponentFacts:
    call_s = request_s / facts.passes / len(facts.layers)
    layers = tuple(replace(layer, compute_s=call_s) for layer in facts.layers)
    return replace(facts, layers=layers)


def whole_case() -> Case:
    """As the Serve file has it."""
    config = read_config(CONFIG)
    return Case(config, survey_model(config).facts)


def untiled_case() -> Case:
    """The same file without tiling, and without a word about the VAE's activations."""
    config = read_config(CONFIG)
    vae = config.components["vae"].model_copy(update={"tiling": False, "activation": 0})
    config = config.model_copy(update={"components": {**config.components, "vae": vae}})
    return Case(config, survey_model(config).facts)


def turning_point(case: Case, name: str, size: str) -> int:
    """The most activation bytes of a component with which all of the wish stays on the card."""
    low, high = 0, case.budget(size).num_bytes  # it does at the one, and cannot at the other
    while high - low > 1:
        middle = (low + high) // 2
        if _stays_or_not(case, size, case.with_activation(name, middle)):
            low = middle
        else:
            high = middle
    return low


def _stays_or_not(case: Case, size: str, facts: Sequence[ComponentFacts]) -> bool:
    try:
        return case.stays(size, facts)
    except DoesNotFitError:
        return False
