"""Nets that take declared seconds of a virtual clock, on a card under a plan made by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from offload import Residency, SimulatedCard
from offload.facts import Budget
from offload.plan import ComponentPlan, Lifetime, ResidencyPlan, UnitPlan
from offload.survey import survey_component

RATE = 1e5
TRUNK_S, LAYER_S, FIRST_S = 0.5, (0.25, 1.0, 2.0), 4.0
PLANS = {"PPPP": "permanent", "FFFF": "forward", "FSSS": "streamed", "PPFS": "mixed"}
LIFETIMES = {life.value[0].upper(): life for life in Lifetime}


class Layer(nn.Module):
    """Takes set seconds of the virtual clock; ``kilobytes`` of activation live meanwhile."""

    def __init__(self, card: SimulatedCard, seconds: float, kilobytes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((256,), 0.3))
        self.card, self.seconds, self.kilobytes = card, seconds, kilobytes

    def forward(self, x: torch.Tensor, extra_s: float) -> torch.Tensor:
        alive = torch.ones(256 * self.kilobytes)
        self.card.compute(self.seconds + extra_s)
        return x + self.weight[:1] * alive[:1]


class Net(nn.Module):
    """Calls the layers that it is told to; the first call of all takes longer in every layer."""

    def __init__(self, card: SimulatedCard, kilobytes: int = 8) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((256,), 0.7))
        self.layers = nn.ModuleList(Layer(card, seconds, kilobytes) for seconds in LAYER_S)
        self.card = card
        self.cold = True
        self.others: list[nn.Module] = []  # called within its own pass
        self.kilobytes_after = 0  # that live at the end of its pass

    def forward(self, x: torch.Tensor, order: Sequence[int] = (0, 1, 2)) -> torch.Tensor:
        self.card.compute(TRUNK_S / 2)
        x = x + self.shift[:1]
        for index in order:
            x = self.layers[index](x, FIRST_S if self.cold else 0.0)
        for other in self.others:
            x = other(x)
        x = x + torch.zeros(1 + 256 * self.kilobytes_after)[:1]
        self.card.compute(TRUNK_S / 2)
        self.cold = False
        return x


def plan_of(name: str, net: nn.Module, letters: str) -> ComponentPlan:
    facts = survey_component(net, name)
    trunk, *layers = (
        UnitPlan(
            name=unit.name,
            list_name=unit.list_name,
            num_bytes=unit.num_bytes,
            lifetime=LIFETIMES[letter],
        )
        for unit, letter in zip((facts.trunk, *facts.layers), letters, strict=True)
    )
    return ComponentPlan(name=name, trunk=trunk, layers=tuple(layers))


@dataclass
class Bench:
    """Nets by name on one virtual card, attached."""

    card: SimulatedCard
    nets: dict[str, Net]
    residency: Residency

    def run(self, *steps: str | tuple[str, Sequence[int]]) -> None:
        """One request: a pass for each step, a name or a name with the layers that it calls."""
        for net in self.nets.values():
            net.cold = True
        with self.residency.request():
            for step in steps:
                name, order = (step, (0, 1, 2)) if isinstance(step, str) else step
                self.nets[name](torch.zeros(1), order)


def bench(letters: str, *names: str, **options) -> Bench:
    how = {"memory_bytes": 1 << 20, "bytes_per_s": RATE, "clock": "virtual"} | options
    card = SimulatedCard(**how)
    nets = {name: Net(card) for name in names or ("net",)}
    plan = ResidencyPlan(
        components=tuple(plan_of(name, net, letters) for name, net in nets.items()),
        budget=Budget(num_bytes=1 << 20, copy_bytes_per_s=RATE),
    )
    return Bench(card, nets, Residency.attach(nets, card=card, plan=plan))
