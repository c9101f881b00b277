"""From the user's words to one wish per component; nothing that was written is ignored silently."""

from typing import Any

import pytest

from offload.errors import SpecError
from offload.spec import ComponentSpec, ResidencySpec
from offload.wish import describe_wish, group_of, resolve_wishes, with_known
from tests.offload.facts_kit import component

FACTS = (
    component("text_encoder", {"visual": [1] * 27, "merger": [1] * 3, "language": [1] * 36}),
    component("transformer", {"blocks": [1] * 32}),
    component("vae"),
)


def resolve(**components: Any) -> tuple[dict[str, ComponentSpec], tuple[str, ...]]:
    return resolve_wishes(ResidencySpec(components=components), FACTS)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("transformer", "dit"),
        ("transformer_2", "dit"),
        ("unet", "dit"),
        ("prior", "dit"),
        ("text_encoder", "text_encoder"),
        ("text_encoder_3", "text_encoder"),
        ("image_encoder", "image_encoder"),
        ("vae", "vae"),
        ("vqvae", "vae"),
        ("vqgan", "other"),
        ("movq", "vae"),
        ("safety_checker", "other"),
    ],
)
def test_names_belong_to_groups(name: str, group: str) -> None:
    assert group_of(name) == group


# --- which wish is meant -----------------------------------------------------------------------
def test_the_exact_name_wins_over_the_group_and_the_group_over_all() -> None:
    wishes, warnings = resolve(all="none", dit=3, transformer=5)
    assert [wish.resident_layers for wish in wishes.values()] == ["none", 5, "none"]
    assert list(wishes) == ["text_encoder", "transformer", "vae"]
    assert resolve(all="none", dit=3)[0]["transformer"].resident_layers == 3
    assert warnings == (
        "vae: resident_layers=none has no effect: the component has no layers "
        "and is held as a whole",
    )


def test_a_component_that_nobody_mentions_is_auto() -> None:
    assert resolve(vae="all") == (
        {
            "text_encoder": ComponentSpec(),
            "transformer": ComponentSpec(),
            "vae": ComponentSpec(resident_layers="all"),
        },
        (),
    )


def test_a_misspelt_name_is_refused_with_the_nearest_and_all_valid_ones() -> None:
    with pytest.raises(SpecError, match="did you mean 'text_encoder'") as raised:
        resolve(text_encodr=0.8)
    for valid in ("text_encoder", "transformer", "vae", "dit", "image_encoder", "all"):
        assert valid in str(raised.value)


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(SpecError, match="no component or group is called 'zzz'") as raised:
        resolve(zzz=1)
    assert "did you mean" not in str(raised.value)
    with pytest.raises(SpecError, match="components: none"):
        resolve_wishes(ResidencySpec(components={"zzz": ComponentSpec()}), ())


def test_a_group_without_components_is_a_warning() -> None:
    _, warnings = resolve(image_encoder=0.5)
    assert warnings == (
        "image_encoder: no component belongs to this group, so the entry has no "
        "effect; components: text_encoder, transformer, vae",
    )


# --- options without effect --------------------------------------------------------------------
@pytest.mark.parametrize("zero", ["none", 0, 0.0])
def test_permanent_with_zero_resident_layers_warns(zero: Any) -> None:
    wishes, warnings = resolve(transformer={"resident_layers": zero, "lifetime": "permanent"})
    assert warnings == (
        "transformer: lifetime=permanent has no effect with zero resident layers; "
        "every layer is streamed",
    )
    assert wishes["transformer"].resident_layers == zero


@pytest.mark.parametrize(("resident", "which"), [("none", "none"), ("all", "all"), (32, "all")])
def test_a_policy_without_a_choice_warns(resident: Any, which: str) -> None:
    _, warnings = resolve(transformer={"resident_layers": resident, "policy": "spread"})
    assert warnings == (
        f"transformer: policy=spread has no effect where {which} of the layers are resident",
    )


def test_a_window_for_nothing_warns() -> None:
    _, warnings = resolve(transformer={"resident_layers": 1.0, "window": 4})
    assert warnings == ("transformer: window=4 has no effect where nothing is streamed",)


def test_one_layer_too_many_is_clamped_with_a_warning() -> None:
    wishes, warnings = resolve(transformer=33, text_encoder=37)
    assert wishes["transformer"].resident_layers == 32
    assert wishes["text_encoder"].resident_layers == 36
    assert warnings == (
        "text_encoder: resident_layers=37 is more than a list has (36); 36 are taken",
        "transformer: resident_layers=33 is more than a list has (32); 32 are taken",
    )
    assert resolve(transformer=32)[1] == ()


def test_layer_options_for_a_component_without_layers_warn() -> None:
    _, warnings = resolve(vae={"resident_layers": 3, "policy": "leading", "window": 2})
    assert [text.split(" has no effect")[0] for text in warnings] == [
        "vae: resident_layers=3",
        "vae: policy=leading",
        "vae: window=2",
    ]
    assert resolve(vae={"resident_layers": 1.0, "lifetime": "permanent"})[1] == ()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "spread"},
        {"window": 3},
        {"lifetime": "permanent"},
        {"resident_layers": 0.8, "lifetime": "forward", "policy": "leading", "window": 3},
    ],
)
def test_options_with_an_effect_do_not_warn(options: dict[str, Any]) -> None:
    assert resolve(transformer=options)[1] == ()


# --- the user's words ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (ComponentSpec(), "auto"),
        (ComponentSpec(resident_layers=0.8), "resident_layers=0.8, lifetime=auto"),
        (ComponentSpec(lifetime="permanent"), "resident_layers=auto, lifetime=permanent"),
        (
            ComponentSpec(resident_layers="all", policy="spread", window=3),
            "resident_layers=all, lifetime=auto, policy=spread, window=3",
        ),
    ],
)
def test_wishes_are_quoted_as_written(wish: ComponentSpec, words: str) -> None:
    assert describe_wish(wish) == words


# --- what else is known ------------------------------------------------------------------------
def test_activations_and_passes_are_given_by_component_or_group() -> None:
    known = with_known(FACTS, {"vae": 7, "all": 3}, {"dit": 20})
    assert [facts.activation_bytes for facts in known] == [3, 3, 7]
    assert [facts.passes for facts in known] == [1, 20, 1]
    assert with_known(FACTS, {}, {}) == FACTS


@pytest.mark.parametrize("names", [({"vea": 1}, {}), ({}, {"vea": 1})])
def test_what_is_known_of_a_component_that_is_not_there_is_refused(names: Any) -> None:
    with pytest.raises(SpecError, match="no component or group is called 'vea'"):
        with_known(FACTS, *names)
