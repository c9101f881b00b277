"""Facts are arithmetic over what was measured."""

import pytest

from offload.facts import Budget, CardFacts, aligned
from offload.sizes import GIB, MIB
from tests.offload.facts_kit import component


@pytest.mark.parametrize(
    ("asked", "taken"), [(0, 0), (1, 256), (256, 256), (257, 512), (1000, 1024)]
)
def test_storages_start_on_256_byte_boundaries(asked: int, taken: int) -> None:
    assert aligned(asked) == taken


def test_weights_are_the_trunk_and_every_layer() -> None:
    facts = component("transformer", {"blocks": [10, 20], "single": [5]}, trunk_bytes=100)
    assert facts.weight_bytes == 135


def test_lists_come_in_order_of_appearance() -> None:
    facts = component("text_encoder", {"visual.blocks": [1] * 27, "merger": [1] * 3, "a": [1] * 36})
    assert list(facts.lists.items()) == [("visual.blocks", 27), ("merger", 3), ("a", 36)]
    assert component("vae").lists == {}


def test_the_budget_is_free_memory_less_the_reserve() -> None:
    card = CardFacts(name="a", memory_bytes=24 * GIB, free_bytes=20 * GIB, reserve_bytes=GIB)
    budget = Budget.of(card)
    assert budget.num_bytes == 19 * GIB
    assert budget.copy_bytes_per_s == card.copy_bytes_per_s


def test_a_reserve_above_free_memory_leaves_nothing() -> None:
    card = CardFacts(name="a", memory_bytes=GIB, free_bytes=MIB, reserve_bytes=2 * MIB)
    assert Budget.of(card).num_bytes == 0


@pytest.mark.parametrize(("simulated", "taken"), [(True, 256), (False, 2 * MIB)])
def test_allocations_are_rounded_as_the_card_rounds(simulated: bool, taken: int) -> None:
    card = CardFacts(name="a", memory_bytes=GIB, free_bytes=GIB, simulated=simulated)
    budget = Budget.of(card)
    assert budget.rounded(1) == taken
    assert budget.rounded(0) == 0
    assert budget.rounded(taken + 1) == 2 * taken
