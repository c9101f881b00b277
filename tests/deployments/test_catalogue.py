"""A card is found by any spelling of its name, and never promises more than a real one has."""

import pytest

from deployments.catalogue import CATALOGUE, CatalogueCard, find_in_catalogue

GIB = 1 << 30


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "rtx-4090", "Rtx_4090"])
def test_spelling_does_not_matter(name: str) -> None:
    card = find_in_catalogue(name)
    assert card is not None
    assert card.name == "rtx4090"


@pytest.mark.parametrize("name", ["", "4090", "rtx", "24GiB", "gpu"])
def test_half_a_name_is_none(name: str) -> None:
    assert find_in_catalogue(name) is None


@pytest.mark.parametrize("card", CATALOGUE, ids=lambda card: card.name)
def test_every_card_has_a_source_and_less_free_than_it_was_sold_with(card: CatalogueCard) -> None:
    assert card.source.startswith("https://")
    assert 0.9 * card.memory_bytes < card.free_bytes < card.memory_bytes <= card.memory_gib * GIB
    assert find_in_catalogue(card.name) is card


def test_no_two_cards_share_a_name() -> None:
    assert len({card.name for card in CATALOGUE}) == len(CATALOGUE) >= 12


@pytest.mark.parametrize(("name", "free_gib"), [("rtx4090", 23.5), ("rtx5090", 31.4)])
def test_measured_free_memory_is_taken_and_the_estimate_is_below_it(
    name: str, free_gib: float
) -> None:
    """So that the estimate for cards that nobody measured errs on the small side."""
    card = find_in_catalogue(name)
    assert card is not None
    assert card.free_bytes == int(free_gib * GIB)
    estimated = CatalogueCard(name=name, memory_gib=card.memory_gib, pcie=4, source="")
    assert 0.99 * card.free_bytes < estimated.free_bytes < card.free_bytes


def test_inline_ecc_takes_a_sixteenth() -> None:
    """24 GB boards with it show 22.5 GiB."""
    card = find_in_catalogue("l4")
    assert card is not None
    assert card.memory_bytes == 22.5 * GIB


def test_rates_follow_lanes_and_generation() -> None:
    """48 GB/s were measured on 16 lanes of generation 5."""
    rates = {
        pcie: CatalogueCard(name="c", memory_gib=1, pcie=pcie, source="") for pcie in (3, 4, 5)
    }
    assert rates[5].copy_bytes_per_s == pytest.approx(48e9, rel=0.01)
    assert rates[4].copy_bytes_per_s == pytest.approx(24e9, rel=0.01)
    assert rates[3].copy_bytes_per_s == pytest.approx(12e9, rel=0.01)
    half = CatalogueCard(name="c", memory_gib=1, pcie=4, lanes=8, source="")
    assert half.copy_bytes_per_s == rates[4].copy_bytes_per_s / 2
