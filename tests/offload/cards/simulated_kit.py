"""Simulated cards and the three calls that nearly every test of them makes."""

import pytest
import torch

from offload.cards.base import COMPUTE, COPY
from offload.cards.simulated import SimulatedCard

MIB = 1 << 20
KINDS = [
    pytest.param({"clock": "wall"}, id="wall"),
    pytest.param({"clock": "virtual"}, id="virtual"),
    pytest.param({"clock": "wall", "threaded": True}, id="threaded"),
]


def make(**options) -> SimulatedCard:
    return SimulatedCard(**{"memory_bytes": MIB, "bytes_per_s": 1e9, "clock": "virtual"} | options)


def bytes_of(num_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, generator=generator)


def place(card: SimulatedCard, num_bytes: int, label: str = "net/forward") -> torch.Tensor:
    """Memory that the copy stream may write to."""
    memory = card.allocate(num_bytes, label)
    born = card.event("born")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    return memory


def send(card: SimulatedCard, place: torch.Tensor, source: torch.Tensor, unit: str = "blocks.0"):
    card.copy(place, source, unit, charge_to="net")
    ready = card.event(f"ready {unit}")
    card.record(ready, COPY)
    return ready
