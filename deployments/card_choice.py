"""Which card a command uses: one by name, one of a given size, or the first that is there.

Knows the ``cards`` of a Serve file; nothing of models or plans. Commands only: a replica takes the
card that its rank and Ray give it.
"""

from typing import TYPE_CHECKING

from deployments.config import CardsConfig, SimulatedCardConfig
from deployments.errors import ConfigError
from offload import CardFacts, SpecError, parse_bytes

if TYPE_CHECKING:
    from offload import Card  # at run time it would import torch

CONTEXT_BYTES = 768 << 20  # of an accelerator on which no context exists yet
SLACK_BYTES, SLACK_SHARE = 256 << 20, 0.02  # the larger of the two is left free beside it
RATE = "25GB/s"  # host to card, where nothing was measured


def card_facts(cards: CardsConfig, wanted: str | None) -> CardFacts:
    """The facts of the card to plan for; nothing is allocated and no context created."""
    if wanted is None and cards.gpu != "never":
        from offload import list_cards  # late: it imports torch

        detected = list_cards()
        if detected:
            return detected[0]
    entry = _choose(cards, wanted)
    # A size alone means a card of the kind that the file is for.
    is_simulated = bool(cards.simulated)
    return CardFacts(
        name=entry.name,
        memory_bytes=entry.memory_bytes,
        free_bytes=entry.memory_bytes - entry.used_bytes,
        reserve_bytes=0 if is_simulated else reserve_bytes(entry.memory_bytes),
        copy_bytes_per_s=entry.bytes_per_s,
        simulated=is_simulated,
    )


def reserve_bytes(memory_bytes: int) -> int:
    """What an accelerator keeps free of plans before its context exists."""
    return CONTEXT_BYTES + max(SLACK_BYTES, int(SLACK_SHARE * memory_bytes))


def open_card(cards: CardsConfig, wanted: str | None) -> "Card":
    """The card to run on; a card that is asked for by name or size is simulated."""
    from deployments.cards import find_card  # late, both: they import torch
    from offload import list_cards

    if wanted is None and cards.gpu != "never" and list_cards():
        return find_card(cards, rank=0, use_gpu=True)
    chosen = cards.model_copy(update={"simulated": (_choose(cards, wanted),)})
    return find_card(chosen, rank=0, use_gpu=False)


def _choose(cards: CardsConfig, wanted: str | None) -> SimulatedCardConfig:
    by_name = {entry.name: entry for entry in cards.simulated}
    if wanted is None:
        if cards.gpu == "require" or not cards.simulated:
            raise ConfigError(
                "no GPU was found, and the file names no simulated card to stand in; give --card "
                "with a size such as 24GiB"
            )
        return cards.simulated[0]
    if wanted in by_name:
        return by_name[wanted]
    try:
        memory_bytes = parse_bytes(wanted)
    except SpecError as error:
        raise ConfigError(
            f"--card is {wanted!r}: neither a simulated card of the file "
            f"({', '.join(by_name) or 'it has none'}) nor a size such as 24GiB"
        ) from error
    rate = cards.simulated[0].rate if cards.simulated else RATE
    return SimulatedCardConfig(name=wanted, memory=memory_bytes, rate=rate)
