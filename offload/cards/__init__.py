"""Cards: what weights are placed on, real or simulated, and how to find it."""

from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import Card, CardUsage, Timing
from offload.cards.detect import detect_card, list_cards
from offload.cards.failure import is_out_of_memory, is_sticky
from offload.cards.mps import MpsCard
from offload.cards.simulated import SimulatedCard, SimulatedOutOfMemory

__all__ = [
    "AcceleratorCard",
    "Card",
    "CardUsage",
    "MpsCard",
    "SimulatedCard",
    "SimulatedOutOfMemory",
    "Timing",
    "detect_card",
    "is_out_of_memory",
    "is_sticky",
    "list_cards",
]
