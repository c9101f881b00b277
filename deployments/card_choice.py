"""Which card a command uses: one by name, one of a given size, or the first that is there.

Knows the ``cards`` of a Serve file and the catalogue; nothing of models or plans. Commands only: a
replica takes the card that its rank and Ray give it.
"""

from typing import TYPE_CHECKING, NamedTuple

from deployments.catalogue import CATALOGUE, CatalogueCard, find_in_catalogue
from deployments.config import CardsConfig, SimulatedCardConfig
from deployments.errors import ConfigError
from offload import CardFacts, SpecError, parse_bytes

if TYPE_CHECKING:
    from offload import Card  # at run time it would import torch

AUTO = "auto"  # the same as naming none
CONTEXT_BYTES = 768 << 20  # of an accelerator on which no context exists yet
SLACK_BYTES, SLACK_SHARE = 256 << 20, 0.02  # the larger of the two is left free beside it
RATE = "25GB/s"  # host to card, where nothing was measured


def card_facts(cards: CardsConfig, wanted: str | None) -> CardFacts:
    """The facts of the card to plan for; nothing is allocated and no context created."""
    if _is_open(wanted) and cards.gpu != "never":
        from offload import list_cards  # late: it imports torch

        detected = list_cards()
        if detected:
            return detected[0]
    return _facts(_choose(cards, wanted))


def all_card_facts(cards: CardsConfig) -> tuple[CardFacts, ...]:
    """The simulated cards of the file, then every card of the catalogue."""
    simulated = [_Chosen(entry, simulated=True) for entry in cards.simulated]
    return tuple(map(_facts, [*simulated, *map(_listed, CATALOGUE)]))


def _facts(chosen: "_Chosen") -> CardFacts:
    entry = chosen.entry
    return CardFacts(
        name=entry.name,
        memory_bytes=entry.memory_bytes,
        free_bytes=entry.memory_bytes - entry.used_bytes,
        reserve_bytes=0 if chosen.simulated else reserve_bytes(entry.memory_bytes),
        copy_bytes_per_s=entry.bytes_per_s,
        simulated=chosen.simulated,
    )


def reserve_bytes(memory_bytes: int) -> int:
    """What an accelerator keeps free of plans before its context exists."""
    return CONTEXT_BYTES + max(SLACK_BYTES, int(SLACK_SHARE * memory_bytes))


def open_card(cards: CardsConfig, wanted: str | None) -> "Card":
    """The card to run on; a card that is asked for by name or size is simulated."""
    from deployments.cards import find_card  # late, both: they import torch
    from offload import list_cards

    if _is_open(wanted) and cards.gpu != "never" and list_cards():
        return find_card(cards, rank=0, use_gpu=True)
    chosen = cards.model_copy(update={"simulated": (_choose(cards, wanted).entry,)})
    return find_card(chosen, rank=0, use_gpu=False)


class _Chosen(NamedTuple):
    """A card that is not asked, and whether it exists only in a Serve file."""

    entry: SimulatedCardConfig
    simulated: bool


def _is_open(wanted: str | None) -> bool:
    return wanted is None or wanted == AUTO


def _choose(cards: CardsConfig, wanted: str | None) -> _Chosen:
    if wanted is None or _is_open(wanted):
        return _Chosen(_stand_in(cards), simulated=True)
    by_name = {entry.name: entry for entry in cards.simulated}
    if wanted in by_name:
        return _Chosen(by_name[wanted], simulated=True)
    listed = find_in_catalogue(wanted)
    if listed is not None:
        return _listed(listed)
    try:
        memory_bytes = parse_bytes(wanted)
    except SpecError as error:
        raise ConfigError(
            f"--card is {wanted!r}: neither a simulated card of the file "
            f"({', '.join(by_name) or 'it has none'}), a card of the catalogue "
            f"({', '.join(card.name for card in CATALOGUE)}), nor a size such as 24GiB"
        ) from error
    # A size alone means a card of the kind that the file is for.
    rate = cards.simulated[0].rate if cards.simulated else RATE
    entry = SimulatedCardConfig(name=wanted, memory=memory_bytes, rate=rate)
    return _Chosen(entry, simulated=bool(cards.simulated))


def _stand_in(cards: CardsConfig) -> SimulatedCardConfig:
    if cards.gpu == "require" or not cards.simulated:
        raise ConfigError(
            "no GPU was found, and the file names no simulated card to stand in; give --card "
            "with a size such as 24GiB or a name such as rtx4090"
        )
    return cards.simulated[0]


def _listed(card: CatalogueCard) -> _Chosen:
    entry = SimulatedCardConfig(
        name=card.name,
        memory=card.memory_bytes,
        rate=card.copy_bytes_per_s,
        used=card.memory_bytes - card.free_bytes,
    )
    return _Chosen(entry, simulated=False)
