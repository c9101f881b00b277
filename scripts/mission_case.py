"""The case that Tenure was made for: Qwen-Image-2.1 on five cards, under four wishes.

``python -m scripts.mission_case`` prints what docs/qwen-image-2.1.md shows, ``--write`` puts it
there. Everything is planned from configuration files: no weight, no card, nothing measured here.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from deployments.card_choice import card_facts
from deployments.config import AppConfig
from deployments.paths import ROOT
from deployments.surveys import read_config, survey_model
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    DoesNotFitError,
    ResidencyPlan,
    ResidencySpec,
    explain,
    format_bytes,
    plan_residency,
    predicted,
)

PAGE = ROOT / "docs" / "qwen-image-2.1.md"
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


# --- what the page shows -------------------------------------------------------------------------
def blocks(case: Case, untiled: Case) -> dict[str, str]:
    """Name of a block of the page -> its text."""
    return {
        "parts": _parts(case),
        "missing": _quoted(_missing(case, SMALL)),
        "small card": _quoted(explain(case.plan(case.wish, SMALL), case.facts)),
        "copies": _table(case, case.facts),
        "chosen": _chosen(case, case.facts),
        "compute": _table(case, case.with_compute),
        "turning point": _turning_point(case),
        "untiled": _quoted(_untiled(untiled)),
    }


def _parts(case: Case) -> str:
    header = ("part", "layers", "trunk", "all weights", "activations")
    rows = [
        (
            one.name,
            str(len(one.layers)),
            format_bytes(one.trunk.num_bytes),
            format_bytes(one.weight_bytes),
            format_bytes(one.activation_bytes),
        )
        for one in case.facts
    ]
    return _markdown(header, rows)


def _missing(case: Case, size: str) -> str:
    """What the planner says where all of the wish must stay."""
    try:
        case.plan(case.wish_for_good, size)
    except DoesNotFitError as error:
        return str(error).partition(". ")[0]
    return "it fits"


def _table(case: Case, facts: Sequence[ComponentFacts]) -> str:
    header = ("free memory", *case.wishes)
    rows = [
        (_words(size), *(_cell(case, wish, size, facts) for wish in case.wishes.values()))
        for size in SIZES
    ]
    return _markdown(header, rows)


def _cell(case: Case, wish: Wish, size: str, facts: Sequence[ComponentFacts]) -> str:
    try:
        plan = case.plan(wish, size, facts)
    except DoesNotFitError as error:
        (missing,) = re.findall(r"bytes \(([^)]+)\) are missing", str(error))
        return f"{missing} missing"
    ahead = predicted(plan, facts)
    return f"{ahead['request_s']:.3f} s, {format_bytes(ahead['h2d_bytes'])}"


def _chosen(case: Case, facts: Sequence[ComponentFacts]) -> str:
    header = ("free memory", "the wish", "the planner's choice")
    rows = [
        (_words(size), *(_residency(case.plan(wish, size, facts)) for wish in (case.wish, FREE)))
        for size in SIZES
    ]
    return _markdown(header, rows)


def _residency(plan: ResidencyPlan) -> str:
    return ", ".join(
        f"{one.name} {one.resident_layers}/{len(one.layers)} {one.lifetime}"
        for one in plan.components
    )


def _turning_point(case: Case) -> str:
    most = turning_point(case, "vae", LARGE)
    return (
        f"With {_words(LARGE)} free, all of the wish stays on the card as long as the VAE's "
        f"activations take at most {format_bytes(most)} ({most} bytes)."
    )


def _untiled(untiled: Case) -> str:
    """What is chosen, and what is said of the VAE."""
    plan = untiled.plan(untiled.wish, LARGE)
    lines = explain(plan, untiled.facts).splitlines()
    return "\n".join([_residency(plan), *(line for line in lines if line.startswith("vae: "))])


def _words(size: str) -> str:
    return size.replace("GiB", " GiB")


def _quoted(text: str) -> str:
    return f"```text\n{text}\n```"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- the page ------------------------------------------------------------------------------------
_BLOCK = re.compile(r"(<!-- made: ([\w ]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def block_names(page: str) -> list[str]:
    return [match[2] for match in _BLOCK.finditer(page)]


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with its blocks as they were made now."""
    return _BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {Path(PAGE).name}")
    asked = parser.parse_args()
    made = blocks(whole_case(), untiled_case())
    if asked.write:
        PAGE.write_text(filled(PAGE.read_text(), made))
        return
    for name, text in made.items():
        print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
