"""Modules that read a layer's weights outside that layer's call, each in a way of its own.

Called with a picture (count, 8); none of them is found by looking at the module's structure.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.offload.nets import Block

WIDTH = 8


class Siblings(nn.Module):
    """Five layers and a trunk; what is read from outside is a subclass's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, 16) for _ in range(5))
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.final(x)


class CatSibling(Siblings):
    """Silent: empty vectors drop out of ``cat``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.get_parameter("blocks.3.scale"), self.get_parameter("blocks.1.down.bias")
        return super().forward(x + torch.cat([*read, x[0]]).sum())


class SumSibling(Siblings):
    """Silent: the sum of nothing is 0. Read in another layer's call, by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].register_forward_pre_hook(self._add)

    def _add(self, _: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        return args[0] + self.blocks[4].norm.weight.sum() + self.blocks[0].scale.mean()


class LinearSibling(Siblings):
    """Raises by itself: a product with a matrix that is empty."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.get_parameter("blocks.1.up.weight"))
        return super().forward(F.linear(x, self.get_parameter("blocks.0.down.weight")))


class NormSibling(Siblings):
    """Raises before any operation runs: a norm checks its weights' sizes first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return F.group_norm(x, 2, self.blocks[2].norm.weight, self.blocks[2].norm.bias)


class SizeSibling(Siblings):
    """Silent: a released weight has no rows to count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.blocks[1].up.weight.shape[0]


class EarlierView(Siblings):
    """A view is taken before the layer's call and read after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = self.blocks[1].up.weight.t()
        return super().forward(x) @ turned @ turned.mT


class UncalledLayers(nn.Module):
    """Layers that only hold weights: none of them is ever called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.linear(x, layer.weight, layer.bias).tanh()
        return self.final(x)


# name -> (how to make it, what is read from outside)
SIBLINGS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "cat": (CatSibling, {"blocks.3.scale", "blocks.1.down.bias"}),
    "sum": (SumSibling, {"blocks.4.norm.weight", "blocks.0.scale"}),
    "linear": (LinearSibling, {"blocks.1.up.weight", "blocks.0.down.weight"}),
    "norm": (NormSibling, {"blocks.2.norm.weight", "blocks.2.norm.bias"}),
    "size": (SizeSibling, {"blocks.1.up.weight"}),
    "earlier view": (EarlierView, {"blocks.1.up.weight"}),
    "uncalled layers": (
        UncalledLayers,
        {f"layers.{i}.{name}" for i in range(4) for name in ("weight", "bias")},
    ),
}


def make_sibling(name: str) -> nn.Module:
    torch.manual_seed(0)
    make, _ = SIBLINGS[name]
    return make().eval().requires_grad_(False)
