"""A spec refuses what cannot be meant, from Python objects and from plain mappings alike."""

import dataclasses
from typing import Any

import pytest

from offload.errors import SpecError
from offload.spec import ComponentSpec, ResidencySpec


@pytest.mark.parametrize("value", ["auto", "all", "none", 0, 1, 53, 0.0, 0.8, 1.0])
def test_a_bare_value_is_resident_layers(value: Any) -> None:
    assert ComponentSpec.from_value(value) == ComponentSpec(resident_layers=value)


@pytest.mark.parametrize("value", [1.5, -0.1, -1, True, "most", "0.8", None, float("nan"), [1]])
def test_resident_layers_that_cannot_be_meant_are_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"resident_layers is .*; give auto, all, none"):
        ComponentSpec.from_value(value)


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("lifetime", "forever", "valid: auto, forward, permanent"),
        ("lifetime", "streamed", "valid: auto, forward, permanent"),
        ("policy", "last", "valid: auto, leading, spread"),
        ("window", 1, "2 or more"),
        ("window", True, "2 or more"),
        ("window", 2.5, "2 or more"),
        ("window", "wide", "2 or more"),
    ],
)
def test_other_options_list_what_is_valid(option: str, value: Any, hint: str) -> None:
    with pytest.raises(SpecError, match=hint) as raised:
        ComponentSpec.from_value({option: value})
    assert option in str(raised.value)
    assert repr(value) in str(raised.value)


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="unknown option 'lifetimes'; valid: resident_layers"):
        ComponentSpec.from_value({"lifetimes": "forward"})


def test_a_mapping_and_an_object_mean_the_same() -> None:
    options = {"resident_layers": 0.8, "lifetime": "permanent", "policy": "spread", "window": 3}
    spec = ResidencySpec(components={"vae": options, "dit": ComponentSpec(**options)})  # type: ignore[arg-type,dict-item]
    assert spec.components["vae"] == spec.components["dit"] == ComponentSpec(**options)  # type: ignore[arg-type]


def test_what_is_wrong_is_said_with_the_name_of_the_component() -> None:
    with pytest.raises(SpecError, match=r"^text_encoder: resident_layers is 1\.5"):
        ResidencySpec(components={"text_encoder": 1.5})  # type: ignore[dict-item]


def test_when_it_does_not_fit_is_shrink_or_refuse() -> None:
    assert ResidencySpec().when_it_does_not_fit == "shrink"
    with pytest.raises(SpecError, match="valid: shrink, refuse"):
        ResidencySpec(when_it_does_not_fit="panic")  # type: ignore[arg-type]


def test_specs_are_values() -> None:
    spec = ComponentSpec(resident_layers=3)
    assert spec == ComponentSpec(resident_layers=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.window = 4  # type: ignore[misc]


def test_spec_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="lifetime"):
        ComponentSpec(lifetime="never")  # type: ignore[arg-type]
