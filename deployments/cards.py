"""Which card this replica plays on, and when its memory may be believed."""

import time
from collections.abc import Callable

from deployments.config import CardsConfig
from offload import Card, CardError, CardFacts, SimulatedCard, detect_card

SETTLE_S = 5.0  # a process that died may still hold memory for so long
POLL_S = 0.5


def find_card(cards: CardsConfig, *, rank: int, use_gpu: bool) -> Card:
    """The GPU that this process was given, or the simulated card of its seat."""
    if use_gpu:
        return detect_card()
    if not cards.simulated:
        raise CardError("cards.simulated is empty and no GPU is used; name a simulated card")
    entry = cards.simulated[rank % len(cards.simulated)]
    return SimulatedCard(
        name=entry.name,
        memory_bytes=entry.memory_bytes,
        bytes_per_s=entry.bytes_per_s,
        used_bytes=entry.used_bytes,
    )


def wait_for_free_memory(card: Card, sleep: Callable[[float], None] = time.sleep) -> CardFacts:
    """The card's facts once free memory no longer grows: a predecessor's may still be returned."""
    facts = card.facts()
    for _ in range(int(SETTLE_S / POLL_S)):
        if facts.simulated:
            break
        sleep(POLL_S)
        before, facts = facts, card.facts()
        if facts.free_bytes <= before.free_bytes:
            break
    return facts
