"""A command's card is the one asked for; a size means a card of the kind the file is for."""

from typing import Any

import pytest

from deployments.card_choice import all_card_facts, card_facts, open_card
from deployments.catalogue import CATALOGUE
from deployments.config import CardsConfig, SimulatedCardConfig
from deployments.errors import ConfigError
from offload import CardFacts

MIB, GIB = 1 << 20, 1 << 30
LARGE = SimulatedCardConfig(name="large", memory="24MiB", rate="400MB/s")
SMALL = SimulatedCardConfig(name="small", memory="14MiB", rate="100MB/s", used="2MiB")
SIMULATED = CardsConfig(gpu="never", simulated=(LARGE, SMALL))
REAL = CardsConfig(gpu="require")

NO_CARD = r"no GPU was found, .* give --card with a size"


@pytest.fixture(autouse=True)
def _machine_without_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests run on a machine with a card, this is what they see."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_first_simulated_card_is_taken_where_none_is_asked_for() -> None:
    assert card_facts(SIMULATED, None) == CardFacts(
        name="large",
        memory_bytes=24 * MIB,
        free_bytes=24 * MIB,
        copy_bytes_per_s=400e6,
        simulated=True,
    )


def test_a_name_takes_that_card_with_what_others_hold_on_it() -> None:
    facts = card_facts(SIMULATED, "small")
    assert (facts.memory_bytes, facts.free_bytes) == (14 * MIB, 12 * MIB)
    assert facts.copy_bytes_per_s == 100e6


def test_a_size_is_another_simulated_card_in_a_file_of_simulated_cards() -> None:
    facts = card_facts(SIMULATED, "10MiB")
    assert (facts.name, facts.memory_bytes, facts.free_bytes) == ("10MiB", 10 * MIB, 10 * MIB)
    assert (facts.reserve_bytes, facts.simulated) == (0, True)
    assert facts.copy_bytes_per_s == LARGE.bytes_per_s


def test_a_size_is_a_gpu_with_its_reserve_in_a_file_of_gpus() -> None:
    facts = card_facts(REAL, "24GiB")
    assert (facts.memory_bytes, facts.free_bytes) == (24 * GIB, 24 * GIB)
    reserve = (768 << 20) + max(256 << 20, int(0.02 * facts.memory_bytes))
    assert (facts.reserve_bytes, facts.simulated) == (reserve, False)


def test_auto_is_the_card_that_no_name_gives() -> None:
    assert card_facts(SIMULATED, "auto") == card_facts(SIMULATED, None)


@pytest.mark.parametrize("cards", [SIMULATED, REAL])
def test_a_card_of_the_catalogue_is_a_gpu_in_any_file(cards: CardsConfig) -> None:
    facts = card_facts(cards, "RTX 4090")
    assert (facts.name, facts.simulated) == ("rtx4090", False)
    assert (facts.memory_bytes, facts.free_bytes) == (24 * GIB, int(23.5 * GIB))
    assert facts.reserve_bytes == (768 << 20) + int(0.02 * 24 * GIB)
    assert facts.copy_bytes_per_s == pytest.approx(24e9, rel=0.01)


def test_a_card_of_the_file_wins_over_one_of_the_catalogue() -> None:
    own = SimulatedCardConfig(name="rtx4090", memory="24MiB")
    assert card_facts(CardsConfig(simulated=(own,)), "rtx4090").memory_bytes == 24 * MIB


def test_all_cards_are_the_files_and_then_the_catalogues() -> None:
    every = all_card_facts(SIMULATED)
    assert [facts.name for facts in every] == ["large", "small", *(c.name for c in CATALOGUE)]
    assert [facts == card_facts(SIMULATED, facts.name) for facts in every] == [True] * len(every)
    assert [facts.simulated for facts in all_card_facts(REAL)] == [False] * len(CATALOGUE)


@pytest.mark.parametrize("wanted", [None, "auto", "small", "10MiB"])
def test_the_opened_card_is_the_planned_one(wanted: str | None) -> None:
    assert open_card(SIMULATED, wanted).facts() == card_facts(SIMULATED, wanted)


@pytest.mark.parametrize(
    ("cards", "wanted", "message"),
    [
        (SIMULATED, "huge", r"--card is 'huge': .* \(large, small\), a card .* nor a size"),
        (REAL, "huge", r"--card is 'huge': .* \(it has none\), .* \(rtx3060, .*\), nor"),
        (REAL, None, NO_CARD),
        (CardsConfig(gpu="require", simulated=(LARGE,)), None, NO_CARD),
        (CardsConfig(gpu="never"), None, NO_CARD),
    ],
)
def test_a_card_that_does_not_exist_is_refused(
    cards: CardsConfig, wanted: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        card_facts(cards, wanted)
