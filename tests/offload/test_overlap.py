"""Guarantee: copies hide behind computation as far as the link allows, in the order of need.

On the virtual clock, so that the ratios are exact: real calls, real events, declared seconds. The
bound of a pass is the larger of its computation and its copies; a first pass adds what must be
there before anything can start.
"""

from dataclasses import replace

import pytest

from offload import Lifetime, Residency, SimulatedCard
from offload.facts import ComponentFacts
from offload.schedule import predict
from tests.offload.nets import F, P, S, make_net, plan_for, survey_component, tokens

DEPTH = 40
RATE = 1e6


class Timed:
    """A net of equal layers whose computation takes ``ratio`` times a layer's copy."""

    def __init__(self, lifetimes: list[Lifetime], ratio: float, window: int = 2) -> None:
        self.net = make_net(depth=DEPTH, side=0)
        self.plan = plan_for({"net": self.net}, lifetimes, window=window)
        self.copy_s = self.plan["net"].layers[0].num_bytes / RATE
        self.compute_s = ratio * self.copy_s
        self.facts = self._facts()
        self.card = SimulatedCard(memory_bytes=1 << 30, bytes_per_s=RATE, clock="virtual")
        self.residency = Residency.attach({"net": self.net}, card=self.card, plan=self.plan)
        for block in self.net.blocks:
            block.up.register_forward_pre_hook(lambda *_: self.card.compute(self.compute_s))

    def _facts(self) -> ComponentFacts:
        facts = survey_component(self.net, "net")
        layers = tuple(replace(layer, compute_s=self.compute_s) for layer in facts.layers)
        return replace(facts, layers=layers)

    def request_s(self, passes: int) -> float:
        """Seconds of the second request, which knows the order from the first."""
        for _ in range(2):
            began_s = self.card.now()
            with self.residency.request():
                for seed in range(passes):
                    self.net(tokens(seed))
        return self.card.now() - began_s

    def bound_s(self, passes: int) -> float:
        layers = self.plan["net"].layers
        lent = sum(layer.lifetime is not P for layer in layers) * self.copy_s
        streamed = sum(layer.lifetime is S for layer in layers) * self.copy_s
        trunk = (
            self.plan["net"].bytes_with(F) / RATE
            - sum(layer.num_bytes for layer in layers if layer.lifetime is F) / RATE
        )
        compute = DEPTH * self.compute_s
        return trunk + max(compute, lent) + (passes - 1) * max(compute, streamed)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("lifetimes", [[F], [S], [F, S], [P, S], [P, F, S]], ids=str)
def test_every_spread_plan_stays_within_five_percent_of_the_bound(
    lifetimes: list[Lifetime], ratio: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offload.schedule.LOOKAHEAD_BYTES", 0)  # two units, as for large layers
    timed = Timed(lifetimes, ratio)
    assert timed.request_s(passes) <= 1.05 * timed.bound_s(passes)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "lifetimes", [[F], [S], [F, S], [P, F, S], [P] * 25 + [S] * 15, [P] * 10 + [F] * 30], ids=str
)
def test_the_schedule_predicts_the_engine_within_five_percent(
    lifetimes: list[Lifetime], ratio: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offload.schedule.LOOKAHEAD_BYTES", 0)
    timed = Timed(lifetimes, ratio)
    facts = replace(timed.facts, passes=passes)
    seconds = predict(facts, timed.plan["net"], RATE).request_s
    assert timed.request_s(passes) == pytest.approx(seconds, rel=0.05)


def test_a_run_starts_when_its_first_layer_is_there_not_the_whole_set() -> None:
    timed = Timed([F], 1.0)
    seen: list[float] = []
    timed.net.blocks[0].register_forward_pre_hook(lambda *_: seen.append(timed.card.now()))
    began_s = timed.card.now()
    timed.net(tokens(1))
    assert seen[0] - began_s <= 3 * timed.copy_s < DEPTH * timed.copy_s / 10


def test_no_more_than_the_lookahead_is_ready_on_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own small copies stand in the same queue: a whole set would block them."""
    monkeypatch.setattr("offload.schedule.LOOKAHEAD_BYTES", 0)
    timed = Timed([F], 4.0)
    waiting: list[int] = []
    for block in timed.net.blocks:
        block.down.register_forward_pre_hook(
            lambda *_: waiting.append(timed.card.num_copies_in_flight)
        )
    timed.net(tokens(1))
    assert max(waiting) <= 2


def test_stall_and_arming_are_counted() -> None:
    timed = Timed([F], 0.0)
    with timed.residency.request() as usage:
        timed.net(tokens(1))
    used = usage.components["net"]
    seconds = timed.plan["net"].bytes_with(F) / RATE
    assert used.arming_s == pytest.approx(seconds)
    assert used.stall_s == pytest.approx(seconds)
    assert used.copied_bytes == timed.plan["net"].bytes_with(F)
