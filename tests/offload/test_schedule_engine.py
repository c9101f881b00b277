"""The predicted schedule is the engine's own: same seconds, same bytes, on the virtual clock."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from offload import Lifetime, Residency, SimulatedCard, schedule
from offload.facts import Budget, ComponentFacts
from offload.plan import ComponentPlan, ResidencyPlan, UnitPlan
from offload.survey import survey_component

RATE = 1000.0
LAYER_FLOATS = 256  # 1024 bytes: about a second of the link
LIFETIMES = {life.value[0].upper(): life for life in Lifetime}


class Block(nn.Module):
    """A layer whose computation takes set seconds of the virtual clock."""

    def __init__(self, card: SimulatedCard, compute_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LAYER_FLOATS))
        self.card = card
        self.compute_s = compute_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.card.compute(self.compute_s)
        return x + self.weight.sum()


class Net(nn.Module):
    """A trunk that computes first, then the layers."""

    def __init__(self, num_layers: int, card: SimulatedCard, compute_s: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2 * LAYER_FLOATS))
        self.blocks = nn.ModuleList(Block(card, compute_s) for _ in range(num_layers))
        self.card = card

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shift.sum()
        self.card.compute(0.7)
        for block in self.blocks:
            x = block(x)
        return x


def plan_of(facts: ComponentFacts, letters: str) -> ComponentPlan:
    trunk, *layers = (
        UnitPlan(
            name=unit.name,
            list_name=unit.list_name,
            num_bytes=unit.num_bytes,
            lifetime=LIFETIMES[letter],
        )
        for unit, letter in zip((facts.trunk, *facts.layers), letters, strict=True)
    )
    return ComponentPlan(name="net", trunk=trunk, layers=tuple(layers))


def third_request(residency: Residency, net: Net, num_passes: int) -> tuple[float, int]:
    """Seconds and bytes once the history knows the component's passes."""
    for _ in range(3):
        began_s = net.card.clock.now()
        with residency.request() as usage:
            for _ in range(num_passes):
                net(torch.zeros(1))
    return net.card.clock.now() - began_s, usage.copied_bytes


@pytest.mark.parametrize("ahead_bytes", [schedule.LOOKAHEAD_BYTES, 2048])
@pytest.mark.parametrize("num_passes", [1, 4])
@pytest.mark.parametrize("compute_s", [0.1, 0.6, 1.5])
@pytest.mark.parametrize(
    "letters",
    ["PPPPP", "FFFFFFF", "PFFFFFF", "FSSSSSS", "PPPPFFF", "PPFFSSS", "PPSPSPS", "FFSFSFS", "PSSPP"],
)
def test_the_prediction_is_what_the_engine_does(
    letters: str,
    compute_s: float,
    num_passes: int,
    ahead_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Layers of real size need gates; small ones are all within the lookahead.
    monkeypatch.setattr(schedule, "LOOKAHEAD_BYTES", ahead_bytes)
    card = SimulatedCard(memory_bytes=1 << 20, bytes_per_s=RATE, clock="virtual")
    net = Net(len(letters) - 1, card, compute_s)
    surveyed = survey_component(net, "net")
    facts = replace(
        surveyed,
        passes=num_passes,
        trunk=replace(surveyed.trunk, compute_s=0.7),
        layers=tuple(replace(layer, compute_s=compute_s) for layer in surveyed.layers),
    )
    plan = plan_of(facts, letters)
    whole = ResidencyPlan(
        components=(plan,), budget=Budget(num_bytes=1 << 20, copy_bytes_per_s=RATE)
    )
    residency = Residency.attach({"net": net}, card=card, plan=whole)
    seconds, copied_bytes = third_request(residency, net, num_passes)
    residency.detach()
    ahead = schedule.predict(facts, plan, RATE)
    assert ahead.request_s == pytest.approx(seconds)
    assert ahead.h2d_bytes == copied_bytes
