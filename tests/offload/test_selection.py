"""Counts and fractions apply to each block list; a policy says which layers they mean."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.plan import Policy
from offload.selection import resident_counts, resident_indices
from tests.offload.facts_kit import component

LISTS = {"visual": [1] * 27, "merger": [1] * 3, "language": [1] * 36}
TEXT_ENCODER = component("text_encoder", LISTS)


def test_the_missions_fraction_of_each_list() -> None:
    counts = resident_counts(TEXT_ENCODER.lists, 0.8)
    assert counts == {"visual": 22, "merger": 2, "language": 29}
    assert sum(counts.values()) == 53


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ("all", [27, 3, 36]),
        ("auto", [27, 3, 36]),
        (1.0, [27, 3, 36]),
        ("none", [0, 0, 0]),
        (0, [0, 0, 0]),
        (0.0, [0, 0, 0]),
        (1, [1, 1, 1]),
        (5, [5, 3, 5]),
        (0.01, [1, 1, 1]),
    ],
)
def test_counts_and_fractions_apply_to_each_list(asked: Any, counts: list[int]) -> None:
    assert list(resident_counts(TEXT_ENCODER.lists, asked).values()) == counts


def test_leading_is_a_prefix_of_each_list() -> None:
    layers = component("x", {"a": [1] * 4, "b": [1] * 2}).layers
    assert resident_indices(layers, 0.5, Policy.LEADING) == {0, 1, 4}


def test_spread_streams_every_second_layer_at_one_half() -> None:
    layers = component("x", {"a": [1] * 6}).layers
    assert resident_indices(layers, 0.5, Policy.SPREAD) == {0, 2, 4}


@given(st.integers(1, 70), st.data())
def test_spread_streamed_layers_are_evenly_spaced(num_layers: int, data: st.DataObject) -> None:
    resident = data.draw(st.integers(0, num_layers))
    layers = component("x", {"a": [1] * num_layers}).layers
    streamed = sorted(set(range(num_layers)) - resident_indices(layers, resident, Policy.SPREAD))
    assert len(streamed) == num_layers - resident
    around = [b - a for a, b in zip(streamed, [*streamed[1:], *streamed[:1]], strict=True)]
    gaps = [gap if gap > 0 else gap + num_layers for gap in around]
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("policy", list(Policy))
def test_all_and_none_are_the_same_for_every_policy(policy: Policy) -> None:
    layers = TEXT_ENCODER.layers
    assert resident_indices(layers, "all", policy) == set(range(66))
    assert resident_indices(layers, "none", policy) == frozenset()
