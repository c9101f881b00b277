"""Modules with odd habits, each seen in some stock model: tied, shared, fused, strided.

Every one is called with a picture (count, 8) and keeps that shape: tests run them all alike.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8


class Lump(nn.Module):
    """One parameter of so many 4-byte numbers: a size and hardly anything else."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.mean()


class Lumps(nn.Module):
    """Named children, run one after the other; lists and Sequentials among them are walked."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return run_all(self, x)


def run_all(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for child in module.children():
        x = run_all(child, x) if isinstance(child, nn.ModuleList) else child(x)
    return x


def lumps(*counts: int) -> nn.ModuleList:
    return nn.ModuleList(Lump(count) for count in counts)


class TiedHead(nn.Module):
    """A language model whose head is its embedding: one Parameter object under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.lm_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.embed(torch.arange(x.shape[0]) % WIDTH)
        for block in self.blocks:
            x = block(x).tanh()
        return self.lm_head(x)


class SharedParameter(nn.Module):
    """Two layers hold one Parameter object (relative position biases do)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.blocks[2].bias = self.blocks[0].bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return x


class NormedBlock(nn.Module):
    """A layer that is given its norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class SharedModule(nn.Module):
    """A norm inside two layers, and another inside a layer and the trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, shared = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for norm in (self.norm, shared):
            nn.init.uniform_(norm.weight)
        self.blocks = nn.ModuleList(NormedBlock(norm) for norm in (shared, shared, self.norm))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class FusedViews(nn.Module):
    """Parameters that are slices of one storage: within a layer, and across two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(QKV() for _ in range(3))
        fused = torch.rand(2 * WIDTH)
        self.blocks[0].bias = nn.Parameter(fused[:WIDTH])
        self.blocks[1].bias = nn.Parameter(fused[WIDTH:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return x


class QKV(nn.Module):
    """Three matrices that are rows of one fused storage, and a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        fused = torch.rand(3 * WIDTH, WIDTH)
        self.q, self.k, self.v = (nn.Parameter(part) for part in fused.split(WIDTH))
        self.bias = nn.Parameter(torch.rand(WIDTH))
        self.probe = nn.Identity()  # a place for a test's hook, inside the layer's own call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.probe(x)
        return F.linear(x, self.q) * F.linear(x, self.k) + F.linear(x, self.v, self.bias)


class OddLayouts(nn.Module):
    """Transposed float8, an offset into a larger storage, a scalar, nothing at all, many dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OddBlock() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class OddBlock(nn.Module):
    """Weights as quantised and fused checkpoints leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = _frozen(torch.randn(WIDTH, WIDTH).to(torch.float8_e4m3fn).t())
        self.rows = _frozen(torch.randn(4, WIDTH)[2:])
        self.every_second = _frozen(torch.randn(WIDTH, 2)[:, 1])
        self.scale = _frozen(torch.rand(()))
        self.nothing = _frozen(torch.empty(0, WIDTH))
        self.brain = _frozen(torch.randn(WIDTH).to(torch.bfloat16))
        self.codes = _frozen(torch.randint(-9, 9, (3, WIDTH), dtype=torch.int8))
        self.kernel = _frozen(torch.randn(1, 2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.columns.to(x.dtype) * self.scale + self.rows.sum(0)
        x = torch.cat([x, self.nothing.to(x.dtype)]) + self.every_second
        return x * self.brain.to(x.dtype) + self.codes[1].to(x.dtype) + self.kernel[0, 1]


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


class ReadFromOutside(nn.Module):
    """Reads trunk weights outside their owners' calls, and asks for dtype and device in passing."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.table = nn.Parameter(torch.rand(1, 2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = next(self.blocks.parameters())
        x = x.to(first.device, first.dtype)[: self.positions.weight.shape[0]]
        shift, scale = self.table[0]
        for block in self.blocks:
            x = block(x) * scale + shift
        return F.linear(x, self.positions.weight[:WIDTH])


class Wandering(nn.Module):
    """Blocks in reverse, twice, one never, others between them, and a cache that all write to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CachingBlock() for _ in range(4))
        self.mergers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache: list[torch.Tensor] = []
        for i in (3, 1, 1, 0):
            x = self.blocks[i](x, cache=cache)
            x = x + self.mergers[i % 2](x)
        return x + torch.stack(cache).sum(0)


class CachingBlock(nn.Module):
    """Writes into the caller's list, and calls itself once more for every even length of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, cache: list[torch.Tensor]) -> torch.Tensor:
        cache.append(self.fc(x))
        if len(cache) % 2:
            return x + self(x, cache=cache)
        return x * 0.5 + cache[-1]


class ManyDoors(nn.Module):
    """Computes by every method through which stock pipelines reach a component."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.codes = nn.Embedding(4, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x)

    def decode(self, x: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        for block in reversed(self.blocks):
            x = block(x)
            if cache is not None:
                cache.append(x)
        return x

    def tiled_decode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.decode(tile) for tile in x.split(2)])

    def generate(self, x: torch.Tensor, max_new_tokens: int = 1) -> torch.Tensor:
        for _ in range(max_new_tokens):
            x = self(x)
        return x

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](pixel_values) @ self.codes.weight.T

    def get_text_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[2](x)

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        return self.codes(torch.cdist(x, self.codes.weight).argmin(1))


ODD: dict[str, Callable[[], nn.Module]] = {
    "tied head": TiedHead,
    "shared parameter": SharedParameter,
    "shared module": SharedModule,
    "fused views": FusedViews,
    "odd layouts": OddLayouts,
    "read from outside": ReadFromOutside,
    "wandering": Wandering,
    "sequential": lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)), nn.Tanh()),
    "no list": lambda: Lumps(a=nn.Linear(WIDTH, WIDTH), b=nn.LayerNorm(WIDTH)),
    "nested lists": lambda: Lumps(
        stages=nn.ModuleList(lumps(8, 8, 8) for _ in range(2)), tail=nn.Linear(WIDTH, WIDTH)
    ),
}


def make_odd(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ODD[name]().eval().requires_grad_(False)
