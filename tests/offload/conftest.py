"""Fixtures of the engine's tests. Every simulated card has its order checker on."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from offload import Residency, ResidencyPlan, SimulatedCard
from offload.guard import DispatchGuard
from tests.offload.nets import virtual_card

Attach = Callable[..., Residency]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def guard() -> Iterator[DispatchGuard | None]:
    """Whatever reads weights that are not on the card fails the test. None: a module without it."""
    with DispatchGuard() as guard:
        yield guard


@pytest.fixture
def attach(guard: DispatchGuard | None) -> Iterator[Attach]:
    """Attach modules under a plan made by hand and the guard; detached at the end of the test."""
    made: list[Residency] = []

    def attach_(
        modules: dict[str, nn.Module], plan: ResidencyPlan, card: SimulatedCard | None = None
    ) -> Residency:
        residency = Residency.attach(modules, card=card or virtual_card(), plan=plan)
        made.append(residency)
        if guard is not None:
            guard.watch(residency._components)
        return residency

    yield attach_
    for residency in made:
        residency.detach()
