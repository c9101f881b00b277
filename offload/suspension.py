"""Opening managed modules for others, and taking them back with what was changed.

Inside, parameters are bound to host memory, permanent ones to the card; nothing is copied for that
but adapters of lent weights, which would otherwise be merged into them across devices.
"""

from collections.abc import Iterable, Iterator

import torch

from offload.assembly import Assembly
from offload.unit import Binding


def open_up(assemblies: Iterable[Assembly]) -> None:
    """Bind lent units to their host copies: plain, complete parameters."""
    for assembly in assemblies:
        assembly.origins.doubt(assembly.permanent)  # changes in place are not seen
        for unit in assembly.all_units:
            if unit.host is not None:
                unit.bind(unit.host)
        with torch.inference_mode(False), torch.no_grad():
            for binding in _beside_lent_weights(assembly):
                binding.parameter.data = binding.parameter.data.to("cpu", copy=True)


def _beside_lent_weights(assembly: Assembly) -> Iterator[Binding]:
    """Parameters that others added to a unit that is lent."""
    trunk, *layers = assembly.units
    owners = {
        id(parameter): layer
        for layer in layers
        if layer.module is not None
        for parameter in layer.module.parameters()
    }
    for unit in assembly.adopted:
        for binding in unit.bindings:
            if owners.get(id(binding.parameter), trunk).host is not None:
                yield binding


def keep_changes(assemblies: Iterable[Assembly]) -> None:
    """Write replaced data back to where each unit keeps it; StateError on another shape."""
    for assembly in assemblies:
        for unit in assembly.all_units:
            if unit.memory is not None:
                unit.keep_changes(unit.memory)


def take_back(assemblies: Iterable[Assembly]) -> None:
    """Lent units to their placeholders, permanent ones to the card."""
    for assembly in assemblies:
        for unit in assembly.all_units:
            if unit.host is not None:
                unit.release()
                unit.forget()
            elif unit.memory is not None:
                unit.bind(unit.memory)
