"""The figures of docs/qwen-image-2.1.md, made by the planner.

``python -m scripts.mission_page`` prints them, ``--write`` puts them into the page. Plans nothing
itself and knows no prose: the page says where each figure stands.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence

from deployments.paths import ROOT
from deployments.tables import plan_table
from offload import (
    ComponentFacts,
    DoesNotFitError,
    ResidencyPlan,
    explain,
    format_bytes,
    plan_to_dict,
    predicted,
)
from scripts.mission_case import (
    FREE,
    LARGE,
    SIZES,
    SMALL,
    Case,
    Wish,
    turning_point,
    untiled_case,
    whole_case,
)

PAGE = ROOT / "docs" / "qwen-image-2.1.md"


def blocks(case: Case, untiled: Case) -> dict[str, str]:
    """Name of a block of the page -> its text."""
    return {
        "parts": _parts(case),
        "missing": _quoted(_missing(case, SMALL)),
        "small card": _quoted(_small_card(case)),
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


def _small_card(case: Case) -> str:
    """As `tenure plan` shows it, without a sentence for each component."""
    plan = case.plan(case.wish, SMALL)
    lines = explain(plan, case.facts).splitlines()
    sums = [line for line in lines if line.startswith(("budget: ", "predicted: "))]
    return "\n".join([plan_table(plan_to_dict(plan)["components"]), "", *sums])


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
_BLOCK = re.compile(r"(<!-- made: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def block_names(page: str) -> list[str]:
    return [match[2] for match in _BLOCK.finditer(page)]


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with its blocks as they were made now."""
    return _BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = parser.parse_args()
    made = blocks(whole_case(), untiled_case())
    if asked.write:
        PAGE.write_text(filled(PAGE.read_text(), made))
        return
    for name, text in made.items():
        print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
