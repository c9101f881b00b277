"""The calls that nearly every test of the accelerator card makes."""

import torch

from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import COMPUTE, COPY, Event


def borne(card: AcceleratorCard, num_bytes: int) -> torch.Tensor:
    memory = card.allocate(num_bytes, "net/forward")
    born = card.event("born")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    return memory


def sent(card: AcceleratorCard, memory: torch.Tensor, source: torch.Tensor) -> Event:
    card.copy(memory, source, "blocks.0", charge_to="net")
    ready = card.event("ready")
    card.record(ready, COPY)
    return ready


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)
