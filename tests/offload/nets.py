"""Small modules with the habits of stock ones, and plans made by hand for them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from offload import (
    Budget,
    ComponentPlan,
    Lifetime,
    Policy,
    ResidencyPlan,
    SimulatedCard,
    survey_component,
)
from offload.plan import UnitPlan

P, F, S = Lifetime.PERMANENT, Lifetime.FORWARD, Lifetime.STREAMED
ROOMY = 1 << 30


class Block(nn.Module):
    """A layer with a matrix, a bias, a norm and a root parameter of its own."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two block lists, a trunk with an embedding, a root parameter and buffers, and three doors."""

    def __init__(self, depth: int = 5, side: int = 2, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.side = nn.ModuleList(Block(width, hidden) for _ in range(side))
        self.final = nn.LayerNorm(width)
        self.shift = nn.Parameter(torch.rand(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.rand(width))

    def forward(self, tokens: torch.Tensor, image: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        x = self.embed(tokens) + self.shift + self.table
        if image is not None:
            for block in self.side:
                image = block(image)
            x = x + image
        for block in self.blocks:
            x = block(x)
        return self.final(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.side:
            x = block(x)
        return x + self.shift

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        for block in reversed(self.blocks):
            x = block(x)
        return self.final(x)


def make_net(seed: int = 0, **sizes: int) -> Net:
    torch.manual_seed(seed)
    return Net(**sizes).eval().requires_grad_(False)


def tokens(seed: int = 0, count: int = 6) -> torch.Tensor:
    return torch.randint(0, 11, (count,), generator=torch.Generator().manual_seed(seed))


def picture(seed: int = 0, count: int = 6, width: int = 8) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def component_plan(
    name: str,
    module: nn.Module,
    lifetimes: Sequence[Lifetime] | Lifetime,
    *,
    trunk: Lifetime | None = None,
    window: int = 2,
    keep_in_trunk: Collection[str] = (),
) -> ComponentPlan:
    """A plan by hand: one lifetime for all layers, or one each, repeated to length."""
    facts = survey_component(module, name, keep_in_trunk)
    given = [lifetimes] if isinstance(lifetimes, Lifetime) else list(lifetimes)
    layers = tuple(
        UnitPlan(
            name=unit.name,
            list_name=unit.list_name,
            num_bytes=unit.num_bytes,
            lifetime=given[i % len(given)],
        )
        for i, unit in enumerate(facts.layers)
    )
    all_permanent = all(layer.lifetime is P for layer in layers)
    own = trunk or (P if all_permanent else F)
    return ComponentPlan(
        name=name,
        trunk=UnitPlan(name="trunk", list_name=None, num_bytes=facts.trunk.num_bytes, lifetime=own),
        layers=layers,
        policy=Policy.LEADING,
        window=window,
        buffer_bytes=facts.buffer_bytes,
    )


def plan_for(
    modules: Mapping[str, nn.Module],
    lifetimes: Sequence[Lifetime] | Lifetime,
    *,
    budget_bytes: int = ROOMY,
    window: int = 2,
    keep_in_trunk: Mapping[str, Collection[str]] | None = None,
) -> ResidencyPlan:
    kept = keep_in_trunk or {}
    return ResidencyPlan(
        components=tuple(
            component_plan(name, module, lifetimes, window=window, keep_in_trunk=kept.get(name, ()))
            for name, module in modules.items()
        ),
        budget=Budget(num_bytes=budget_bytes, copy_bytes_per_s=2e9),
    )


def tight(plan: ResidencyPlan) -> ResidencyPlan:
    """The same plan with not a byte to spare."""
    return replace(plan, budget=replace(plan.budget, num_bytes=plan.peak_bytes))


def virtual_card(memory_bytes: int = ROOMY) -> SimulatedCard:
    return SimulatedCard(memory_bytes=memory_bytes, bytes_per_s=1e9, clock="virtual")
