"""What a component of which something is lent refuses, each with what to do instead.

Looked at when a pass or a unit's call begins; it changes nothing.
"""

from collections.abc import Iterable

import torch
from torch import nn

from offload.cards.base import Card
from offload.errors import StateError
from offload.plan import Lifetime
from offload.unit import Unit
from offload.wrapper import Wrapper


def refuse_unsafe(component: str, units: Iterable[Unit], card: Card) -> None:
    """StateError under stream capture, and with gradients that would keep lent weights."""
    if card.is_capturing():
        raise StateError(
            f"{component} is called while a graph is captured: a replay would not bring its "
            "weights; make it permanent, or capture another component"
        )
    if not torch.is_grad_enabled():
        return
    lent = (unit for unit in units if unit.lifetime is not Lifetime.PERMANENT)
    if any(binding.parameter.requires_grad for unit in lent for binding in unit.bindings):
        raise StateError(
            f"{component} is called with gradients enabled while weights of it come and go: "
            "call it under torch.no_grad(), or make it permanent"
        )


def refuse_bypassed(component: str, wrappers: Iterable[Wrapper]) -> None:
    """StateError where a module was compiled since it was wrapped."""
    for wrapper in wrappers:
        if wrapper.is_bypassed:
            raise StateError(
                f"a {type(wrapper.module).__name__} of {component} was compiled after attach, "
                "which hides its calls: compile within residency.suspended()"
            )


def refuse_lost(component: str, root: nn.Module, units: Iterable[Unit]) -> None:
    """StateError where the module no longer has the parameters that were attached."""
    present = {id(parameter) for parameter in root.parameters()}
    lost = [n for unit in units for n, p in unit.parameters.items() if id(p) not in present]
    if lost:
        raise StateError(
            f"parameters of {component} were replaced or removed ({', '.join(lost[:3])}): "
            "detach() before such a change and attach again after it"
        )
