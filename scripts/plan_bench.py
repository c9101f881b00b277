"""The demo pipeline under any plan: on the virtual clock with measured seconds, and on the wall's.

It runs plans and measures; which plans, and what is made of the figures, is the table's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
import yaml

from deployments.config import AppConfig
from deployments.messages import GenerateJob
from deployments.paths import ROOT
from deployments.pipeline import load_pipeline
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    DoesNotFitError,
    Measured,
    Residency,
    ResidencyPlan,
    ResidencySpec,
    SimulatedCard,
    UnitFacts,
    plan_residency,
    predicted,
    survey_components,
    with_live_bytes,
    with_measured,
)

NUM_MEASURED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """On the wall clock; medians."""

    seconds: float
    predicted_s: float
    peak_bytes: int  # of one request, by the ledger


class Bench:
    """The demo pipeline and what a request of it takes on this machine."""

    def __init__(self, *, side: int, steps: int, bytes_per_s: float) -> None:
        path = ROOT / "configs" / "quickstart.yaml"
        args = yaml.safe_load(path.read_text())["applications"][0]["args"]
        config = AppConfig.model_validate(args)
        self.bytes_per_s = bytes_per_s
        self._pipeline = load_pipeline(config.model)
        self._job = GenerateJob(
            request_id="bench", prompt="a circle", width=side, height=side, steps=steps, seed=0
        )
        self.facts = self._measured_facts()

    def _measured_facts(self) -> tuple[ComponentFacts, ...]:
        """With everything on the card, so that nothing but the computation is seen."""
        surveyed = survey_components(self._pipeline.components, {})
        with self._attached(self._card(1 << 30), None) as residency:
            for _ in range(2):
                self._draw(residency)
            timed = self._timed(residency)
            counted = self._measure(residency, live=True)
            return with_measured(surveyed, with_live_bytes(timed, counted))

    def _timed(self, residency: Residency) -> Measured:
        """The middle one of several: a single request on a busy machine may say anything."""
        measured = [self._measure(residency, live=False) for _ in range(NUM_MEASURED)]
        return sorted(measured, key=lambda one: one.seconds)[NUM_MEASURED // 2]

    def plan(self, wish: ComponentSpec | None, memory_bytes: int) -> ResidencyPlan | None:
        """None where it does not fit as it was written."""
        spec = ResidencySpec()
        if wish is not None:
            spec = ResidencySpec(components={"all": wish}, when_it_does_not_fit="refuse")
        try:
            return plan_residency(spec, self.facts, self._budget(memory_bytes))
        except DoesNotFitError:
            return None

    def predicted(self, plan: ResidencyPlan) -> float:
        return float(predicted(plan, self.facts)["request_s"])

    def virtual(self, plan: ResidencyPlan, memory_bytes: int) -> tuple[float, int]:
        """Seconds of a request on the virtual clock, and the bytes that it moved."""
        card = self._card(memory_bytes, clock="virtual")
        with self._attached(card, plan) as residency, self._declared(card) as charges:
            self._draw(residency)  # it learns the order
            for charge in charges:
                charge.begin_request()
            began_s = card.now()
            with residency.request() as usage:
                self._generate()
            return card.now() - began_s, usage.copied_bytes

    def wall(self, plan: ResidencyPlan, memory_bytes: int, times: int) -> "Wall":
        """Drawn ``times`` times on the wall clock, beside what is predicted from its own seconds.

        Measured in between: a machine's pace changes while it is asked for so much.
        """
        with self._attached(self._card(memory_bytes), plan) as residency:
            self._draw(residency)
            drawn, measured = [], []
            for _ in range(times):
                measured.append(self._measure(residency, live=False))
                drawn.append(self._draw(residency))
            ahead = [
                predicted(plan, with_measured(self.facts, one))["request_s"] for one in measured
            ]
            peak_bytes = self._measure(residency, live=True).peak_bytes
        return Wall(
            seconds=median(drawn or [0.0]),
            predicted_s=median(ahead or [0.0]),
            peak_bytes=peak_bytes,
        )

    def _measure(self, residency: Residency, *, live: bool) -> Measured:
        with residency.measuring(source="measured", live=live) as probe:
            self._draw(residency)
        return probe.measured()

    def _draw(self, residency: Residency) -> float:
        began_s = residency.card.now()
        with residency.request():
            self._generate()
        return residency.card.now() - began_s

    def _generate(self) -> None:
        self._pipeline.generate(self._job, lambda *_: None, lambda: False)

    def _card(self, memory_bytes: int, clock: Literal["wall", "virtual"] = "wall") -> SimulatedCard:
        return SimulatedCard(memory_bytes=memory_bytes, bytes_per_s=self.bytes_per_s, clock=clock)

    def _budget(self, memory_bytes: int) -> Budget:
        return Budget.of(self._card(memory_bytes).facts())

    @contextmanager
    def _attached(self, card: SimulatedCard, plan: ResidencyPlan | None) -> Iterator[Residency]:
        residency = Residency.attach(
            self._pipeline.components, card=card, plan=plan, log=lambda line: None
        )
        try:
            yield residency
        finally:
            residency.detach()

    @contextmanager
    def _declared(self, card: SimulatedCard) -> Iterator[list["Charge"]]:
        """Every call takes the seconds that were measured for it."""
        charges, handles = [], []
        for module, first_s, later_s, first_calls in self._calls():
            charges.append(Charge(card, first_s, later_s, first_calls))
            handles.append(module.register_forward_pre_hook(charges[-1]))
        try:
            yield charges
        finally:
            for handle in handles:
                handle.remove()

    def _calls(self) -> Iterator[tuple[torch.nn.Module, float, float, int]]:
        """Module, seconds of a first call and a later one, and the calls of a first pass."""
        for facts in self.facts:
            root = self._pipeline.components[facts.name]
            used = [layer for layer in facts.layers if layer.uses]
            for layer in used:
                yield _first_leaf(root.get_submodule(layer.name)), *_seconds(layer), layer.uses
            # What lies outside the layers is charged with the first one that a pass uses.
            first_s, later_s = _seconds(facts.trunk)
            uses = used[0].uses
            yield (
                _first_leaf(root.get_submodule(used[0].name)),
                first_s / uses,
                later_s / uses,
                uses,
            )


def _seconds(unit: UnitFacts) -> tuple[float, float]:
    return unit.compute_s if unit.first_s is None else unit.first_s, unit.compute_s


def _first_leaf(layer: torch.nn.Module) -> torch.nn.Module:
    """Called once a call of the layer; a hook on that would run before its weights arrived."""
    leaves = (one for one in layer.modules() if not list(one.children()))
    return next(one for one in leaves if list(one.parameters()))


class Charge:
    """Charges the calls of one module to the virtual clock."""

    def __init__(self, card: SimulatedCard, first_s: float, later_s: float, first: int) -> None:
        self._card = card
        self._first_s, self._later_s, self._num_first = first_s, later_s, first
        self._num_calls = 0

    def begin_request(self) -> None:
        self._num_calls = 0

    def __call__(self, *_: object) -> None:
        self._num_calls += 1
        first = self._num_calls <= self._num_first
        self._card.compute(self._first_s if first else self._later_s)
