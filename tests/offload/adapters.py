"""What an adapter does to a linear layer of a small net, and how it leaves."""

import torch
from torch import nn

from tests.offload.nets import Net


class Adapted(nn.Module):
    """What PEFT puts in a linear layer's place: its weights under a longer name, and two more."""

    def __init__(self, base: nn.Linear, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base_layer = base
        self.down = nn.Parameter(torch.randn(2, base.in_features, generator=generator))
        self.up = nn.Parameter(torch.randn(base.out_features, 2, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + x @ self.down.T @ self.up.T


def add(net: Net, block: int = 1) -> None:
    net.blocks[block].up = Adapted(net.blocks[block].up, block).requires_grad_(False)


def remove(net: Net, block: int = 1) -> None:
    net.blocks[block].up = net.blocks[block].up.base_layer


ADDED_BYTES = 2 * 256  # two storages of 64 and 128 bytes, each on a boundary of its own
