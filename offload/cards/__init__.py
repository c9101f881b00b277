"""Cards: what weights are placed on, real or simulated, and how to find it.

Names resolve when they are first used: the allocator's settings must be known before torch is
imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.cards.accelerator import AcceleratorCard as AcceleratorCard
    from offload.cards.allocator import allocator_settings as allocator_settings
    from offload.cards.base import Card as Card
    from offload.cards.base import CardUsage as CardUsage
    from offload.cards.base import Timing as Timing
    from offload.cards.detect import detect_card as detect_card
    from offload.cards.detect import list_cards as list_cards
    from offload.cards.failure import is_out_of_memory as is_out_of_memory
    from offload.cards.failure import is_sticky as is_sticky
    from offload.cards.mps import MpsCard as MpsCard
    from offload.cards.simulated import SimulatedCard as SimulatedCard
    from offload.cards.simulated import SimulatedOutOfMemory as SimulatedOutOfMemory

_HOMES = {
    "AcceleratorCard": "accelerator",
    "Card": "base",
    "CardUsage": "base",
    "MpsCard": "mps",
    "SimulatedCard": "simulated",
    "SimulatedOutOfMemory": "simulated",
    "Timing": "base",
    "allocator_settings": "allocator",
    "detect_card": "detect",
    "is_out_of_memory": "failure",
    "is_sticky": "failure",
    "list_cards": "detect",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'offload.cards' has no attribute {name!r}")
    return getattr(import_module(f"offload.cards.{_HOMES[name]}"), name)
