"""Every weight of the managed components by name: reading them all, changing some.

It reads and writes where a weight is now, on the card or in its host copy, and moves nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch

from offload.assembly import Assembly
from offload.errors import SpecError
from offload.unit import Unit


def named_weights(assemblies: Mapping[str, Assembly]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter once by its present name: ("transformer.blocks.0.a.weight", tensor)."""
    for name, path, unit, at_attach in _places(assemblies):
        yield f"{name}.{path}", unit.tensors()[at_attach]


def load_weights(
    assemblies: Mapping[str, Assembly], pairs: Iterable[tuple[str, torch.Tensor]]
) -> list[str]:
    """Overwrite weights, permanent ones too, in their own dtype; returns the names.

    SpecError on an unknown name or another shape; what was given before it is loaded by then.
    """
    places = {f"{name}.{path}": (name, unit, key) for name, path, unit, key in _places(assemblies)}
    loaded = []
    with torch.inference_mode(False), torch.no_grad():
        for name, tensor in pairs:
            component, unit, key = _find(places, name)
            weight = unit.tensors()[key].data
            if weight.shape != tensor.shape:
                raise SpecError(
                    f"{name} has shape {tuple(weight.shape)}, the new one {tuple(tensor.shape)}"
                )
            assemblies[component].origins.doubt([unit])
            weight.copy_(tensor)
            loaded.append(name)
    return loaded


def _find(places: Mapping[str, tuple[str, Unit, str]], name: str) -> tuple[str, Unit, str]:
    if name not in places:
        example = next(iter(places), "none")
        raise SpecError(f"no weight is called {name!r}; names look like {example!r}")
    return places[name]


def _places(assemblies: Mapping[str, Assembly]) -> Iterator[tuple[str, str, Unit, str]]:
    """(component, present path, unit, path at attach) of every parameter."""
    for name, assembly in assemblies.items():
        present = {id(p): path for path, p in assembly.root.named_parameters()}
        for unit in assembly.all_units:
            for at_attach, parameter in unit.parameters.items():
                yield name, present.get(id(parameter), at_attach), unit, at_attach
