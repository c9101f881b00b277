"""A stock pipeline under management, and all that must hold of each of its requests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from typing import Any

import torch
from torch import nn

from offload import (
    ComponentPlan,
    Lifetime,
    RequestUsage,
    Residency,
    ResidencyPlan,
    SimulatedCard,
)
from offload.plan import UnitPlan
from tests.offload.nets import plan_for, tight
from tests.stock.recipes import Recipe, draw, modules_of


@dataclass(slots=True)
class Stock:
    """A pipeline that is never changed, and what it draws without Tenure."""

    recipe: Recipe
    pipeline: Any
    modules: dict[str, nn.Module]
    plain: list[torch.Tensor] = field(default_factory=list)  # of the recipe's calls

    @property
    def requests(self) -> list[tuple[Mapping[str, Any], torch.Tensor]]:
        """Each kind of request at least twice, three requests at least, with the right answers."""
        pairs = list(zip(self.recipe.calls, self.plain, strict=True))
        return list(islice(cycle(pairs), max(3, 2 * len(pairs))))

    def plain_draw(self, call: Mapping[str, Any]) -> torch.Tensor:
        """What it draws unmanaged, with enough in it that an equal picture says something."""
        picture = draw(self.pipeline, call)
        assert picture.isfinite().all()
        assert picture.std() > 0.01
        return picture

    def tight_plan(self, lifetimes: Sequence[Lifetime], window: int = 2) -> ResidencyPlan:
        return tight(plan_for(self.modules, lifetimes, window=window))


@cache
def stock_of(recipe: Recipe) -> Stock:
    """Built once: ``detach`` gives back plain modules, so that one pipeline serves every plan."""
    pipeline = recipe.make()
    stock = Stock(recipe, pipeline, modules_of(pipeline))
    stock.plain = [stock.plain_draw(call) for call in recipe.calls]
    recipe.prepare(pipeline)
    return stock


@dataclass(slots=True)
class Managed:
    """A residency over a stock pipeline; ``request`` checks what holds before and after each."""

    stock: Stock
    plan: ResidencyPlan
    card: SimulatedCard
    residency: Residency
    parameters: dict[str, nn.Parameter] = field(init=False)
    pointers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = parameters_of(self.stock.modules)
        self.pointers = self._permanent_pointers()

    def request(self, call: Mapping[str, Any], expected: torch.Tensor) -> RequestUsage:
        with self.residency.request() as usage:
            assert torch.equal(draw(self.stock.pipeline, call), expected)
        assert usage.peak_bytes <= self.plan.budget.num_bytes  # a tight plan leaves no more
        assert self.card.usage().allocated_bytes == self.plan.standing_bytes
        assert self.card.num_copies_in_flight == 0
        assert self._permanent_pointers() == self.pointers
        assert_same(self.parameters, self.stock.modules)
        return usage

    def _permanent_pointers(self) -> dict[str, int]:
        return {
            f"{component.name}.{path}": parameter.data_ptr()
            for component in self.plan.components
            for path, parameter in self.stock.modules[component.name].named_parameters()
            if _unit_of(component, path).lifetime is Lifetime.PERMANENT
        }


def _unit_of(component: ComponentPlan, path: str) -> UnitPlan:
    layers = (layer for layer in component.layers if path.startswith(f"{layer.name}."))
    return next(layers, component.trunk)


@contextmanager
def managed(
    stock: Stock, plan: ResidencyPlan, memory_bytes: int | None = None
) -> Iterator[Managed]:
    """Attached on a card as large as the plan's peak, and detached afterwards."""
    before = parameters_of(stock.modules)
    card = SimulatedCard(memory_bytes=memory_bytes or plan.peak_bytes, bytes_per_s=2e9)
    residency = Residency.attach(stock.modules, card=card, plan=plan)
    try:
        yield Managed(stock, plan, card, residency)
    finally:
        residency.detach()
    assert_same(before, stock.modules)
    assert card.usage().allocated_bytes == 0


def parameters_of(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{path}": parameter
        for name, module in modules.items()
        for path, parameter in module.named_parameters()
    }


def assert_same(before: Mapping[str, nn.Parameter], modules: Mapping[str, nn.Module]) -> None:
    """Not equal ones: the very Parameter objects."""
    after = parameters_of(modules)
    assert {path: id(parameter) for path, parameter in after.items()} == {
        path: id(parameter) for path, parameter in before.items()
    }
