"""What is explained: choice, activations and where they come from, prediction and measurement."""

from dataclasses import replace

import pytest

from offload.errors import DoesNotFitError
from offload.explanation import explain
from offload.facts import ComponentFacts
from offload.measured import Measured
from offload.planner import plan_residency
from offload.sizes import GIB
from offload.spec import ResidencySpec
from tests.offload.facts_kit import budget, component, plan


def vae(**more: object) -> ComponentFacts:
    return component(
        "vae",
        trunk_bytes=GIB,
        activation_bytes=12 * GIB,
        activation_source="measured at 1024x1024",
        activation_with=(("tiling", 8 * GIB // 10), ("slicing", 12 * GIB)),
        **more,  # type: ignore[arg-type]
    )


def test_activations_name_their_source_and_what_would_free_them() -> None:
    facts = [vae()]
    text = explain(plan_residency(ResidencySpec(), facts, budget(20 * GIB)), facts)
    assert "activations take 12.00 GiB (measured at 1024x1024); tiling would free 11.20 GiB" in text
    assert "slicing" not in text  # it frees nothing
    bare = [replace(facts[0], activation_source="", activation_with=())]
    assert "activations take 12.00 GiB." in explain(
        plan_residency(ResidencySpec(), bare, budget(20 * GIB)), bare
    )


def test_gaps_are_explained_where_something_is_lent() -> None:
    forward = {"resident_layers": "all", "lifetime": "forward"}
    facts = [
        component("te", {"b": [10] * 4}, passes=2, gaps=(("te2", "vae"),)),
        component("te2", {"b": [10] * 2}),
        component("vae", trunk_bytes=5),
    ]
    held = explain(plan(facts, 80, all=forward))
    assert "te: " in held
    assert "what is lent stays while te2 and vae run" in held
    dropped = explain(plan(facts, 44, all=forward))
    assert "what is lent leaves while te2 and vae run, and is moved again" in dropped
    assert "what is lent" not in explain(plan(facts, 80))
    one = [replace(facts[0], gaps=(("te2",),)), *facts[1:]]
    assert "stays while te2 runs" in explain(plan(one, 80, all=forward))


@pytest.mark.parametrize(
    ("compute_s", "words"),
    [
        ((0.0, 0.0), "; compute is not measured yet, so these are the seconds of copies alone."),
        ((0.0, 1.0), "; compute of te is not measured yet and not counted."),
        ((1.0, 1.0), " at the peak."),
    ],
)
def test_a_prediction_says_what_it_does_not_know(
    compute_s: tuple[float, float], words: str
) -> None:
    facts = [
        component(name, {"b": [10]}, compute_s=seconds)
        for name, seconds in zip(("te", "dit"), compute_s, strict=True)
    ]
    (line,) = [line for line in explain(plan(facts, 20), facts).splitlines() if "predicted" in line]
    assert line.endswith(words)


def test_prediction_and_measurement_stand_side_by_side() -> None:
    facts = [component("dit", {"b": [10] * 2}, compute_s=1.0)]
    measured = Measured(components={}, seconds=2.125, peak_bytes=21, source="measured at 128x128")
    lines = explain(plan(facts, 20), facts, measured).splitlines()
    assert lines[-2:] == [
        "predicted: 2.000 s and 0 B copied a request, 20 B at the peak.",
        "measured:  2.125 s a request, 21 B at the peak (measured at 128x128).",
    ]
    assert explain(plan(facts, 20), (), replace(measured, source="")).endswith("at the peak.")


# --- what does not fit at all ------------------------------------------------------------------
def refusal(facts: list[ComponentFacts], num_bytes: int) -> str:
    with pytest.raises(DoesNotFitError) as raised:
        plan_residency(ResidencySpec(), facts, budget(num_bytes))
    return str(raised.value).partition("The smallest help: ")[2]


def test_a_setting_that_is_enough_is_the_first_help() -> None:
    assert refusal([vae()], 5 * GIB).startswith(
        "turn tiling on for vae (tiling would free 11.20 GiB), or make fewer pixels at once: of "
        "the 12.00 GiB of activations of vae 4.00 GiB fit, or free 8.00 GiB more on the card"
    )


def test_a_setting_that_is_not_enough_is_no_help() -> None:
    text = refusal([vae()], int(1.5 * GIB))
    assert text.startswith("make fewer pixels at once: of the 12.00 GiB of activations of vae 512")


def test_where_weights_do_not_fit_only_bytes_help() -> None:
    assert refusal([vae()], GIB // 2) == "free 12.50 GiB more on the card or use a larger one"
