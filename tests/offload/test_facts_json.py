"""Facts survive JSON unchanged, and whatever is not a fact is refused with its place and name."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload import ComponentFacts, SpecError, UnitFacts, facts_from_dict, facts_to_dict
from offload.facts_json import _COMPONENT, _UNIT

BYTES = st.integers(0, 1 << 50)
SECONDS = st.floats(0, 1e6)
UNITS = st.builds(
    UnitFacts,
    name=st.text(),
    list_name=st.none() | st.text(),
    num_bytes=BYTES,
    compute_s=SECONDS,
    first_s=st.none() | SECONDS,
    uses=st.integers(0, 9),
    pinned_to_card=st.text(),
)
COMPONENTS = st.builds(
    ComponentFacts,
    name=st.text(),
    group=st.text(),
    trunk=UNITS,
    layers=st.lists(UNITS, max_size=3).map(tuple),
    buffer_bytes=BYTES,
    activation_bytes=BYTES,
    activation_source=st.text(),
    activation_with=st.lists(st.tuples(st.text(), BYTES), max_size=2).map(tuple),
    passes=st.integers(1, 99),
    gaps=st.lists(st.lists(st.text(), max_size=2).map(tuple), max_size=2).map(tuple),
    kept_in_trunk=st.lists(st.text(), max_size=2).map(tuple),
)
TRUNK = UnitFacts(name="trunk", list_name=None, num_bytes=512)
LAYER = UnitFacts(name="blocks.0", list_name="blocks", num_bytes=256)
VAE = ComponentFacts(name="vae", group="vae", trunk=TRUNK, layers=(LAYER,))


@given(st.lists(COMPONENTS, max_size=3, unique_by=lambda one: one.name))
def test_facts_come_back_equal(facts: list[ComponentFacts]) -> None:
    text = json.dumps(facts_to_dict(facts))
    assert facts_from_dict(json.loads(text)) == tuple(facts)


def test_every_field_is_written_and_read() -> None:
    """A new field that is forgotten here would be lost on the way."""
    assert set(_COMPONENT) == {field.name for field in fields(ComponentFacts)}
    assert set(_UNIT) == {field.name for field in fields(UnitFacts)}


def test_fields_with_a_default_may_be_left_out() -> None:
    least: dict[str, Any] = {
        "name": "vae",
        "group": "vae",
        "trunk": {"name": "trunk", "list_name": None, "num_bytes": 512},
        "layers": [{"name": "blocks.0", "list_name": "blocks", "num_bytes": 256}],
    }
    assert facts_from_dict([least]) == (VAE,)


def edited(**fields: Any) -> list[dict[str, Any]]:
    return [facts_to_dict([VAE])[0] | fields]


def with_layer(**fields: Any) -> list[dict[str, Any]]:
    return edited(layers=[facts_to_dict([VAE])[0]["layers"][0] | fields])


def without(name: str) -> list[dict[str, Any]]:
    (value,) = edited()
    return [{key: own for key, own in value.items() if key != name}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"the facts are \{\}; give a list"),
        (["vae"], "component 0 is 'vae'; give a mapping of name, group, trunk"),
        (edited(colour=1, age=2), r"component 0 \(vae\) has age, colour, which no field is; known"),
        (with_layer(weight=1), r"\(vae\), layers 0 \(blocks.0\) has weight, which no field is"),
        (without("trunk"), r"component 0 \(vae\) lacks trunk; survey the model again"),
        (edited(name=3), "component 0, name is 3; give a text"),
        (edited(layers={}), r"layers are \{\}; give a list"),
        (with_layer(num_bytes=-1), "num_bytes is -1; give a whole number of 0 or more"),
        (with_layer(num_bytes=1.5), "num_bytes is 1.5; give a whole number"),
        (with_layer(uses=True), "uses is True; give a whole number"),
        (with_layer(compute_s="1"), "compute_s is '1'; give seconds of 0 or more"),
        (with_layer(compute_s=True), "compute_s is True; give seconds"),
        (with_layer(first_s=float("nan")), "first_s is nan; give seconds"),
        (with_layer(first_s=-0.5), "first_s is -0.5; give seconds"),
        (
            edited(activation_with=[["tiling"]]),
            r"activation_with 0 is \['tiling'\]; give a setting",
        ),
        (edited(gaps=[[1]]), "gaps 0 0 is 1; give a text"),
        (edited() + edited(), "the facts have vae twice; leave one of each"),
    ],
)
def test_what_is_no_fact_is_refused_by_place_and_name(values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        facts_from_dict(values)


def test_whole_seconds_are_seconds() -> None:
    """JSON writers drop the point of 2.0."""
    (read,) = facts_from_dict(with_layer(compute_s=2))
    assert read == replace(VAE, layers=(replace(LAYER, compute_s=2.0),))
    assert isinstance(read.layers[0].compute_s, float)
