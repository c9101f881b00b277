"""A command's card is the one asked for; a size means a card of the kind the file is for."""

from typing import Any

import pytest

from deployments.card_choice import card_facts, open_card
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


@pytest.mark.parametrize("wanted", [None, "small", "10MiB"])
def test_the_opened_card_is_the_planned_one(wanted: str | None) -> None:
    assert open_card(SIMULATED, wanted).facts() == card_facts(SIMULATED, wanted)


@pytest.mark.parametrize(
    ("cards", "wanted", "message"),
    [
        (SIMULATED, "huge", r"--card is 'huge': .* \(large, small\) nor a size such as 24GiB"),
        (REAL, "huge", r"--card is 'huge': .* \(it has none\) nor a size"),
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
