"""Sees every operation that reads weights which are not on the card, and names them.

Nearly every use of a placeholder raises by itself; sums, ``cat`` and some products do not, and give
wrong numbers. Tensors are known by their storage, so that a view of a weight is found too. It moves
nothing, and costs microseconds an operation: for tests and the warm-up.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offload.component import Component
from offload.errors import StateError
from offload.survey import storage_key
from offload.unit import Binding, Unit

# They look at dtype, device or shape only; so do all views, ``new_*`` and ``*_like``.
_METADATA = frozenset(
    {"_has_compatible_shallow_copy_type", "is_pinned", "is_same_size", "result_type"}
)


class Weight(NamedTuple):
    """One parameter of a managed component, by its names."""

    component: str
    unit: str
    parameter: str


class ReadMode(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Tells ``read`` of each operation that is about to read a storage of ``keys``."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: set[int] = set()  # storage keys

    @abstractmethod
    def read(self, tensor: torch.Tensor, op: str) -> None: ...

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        known = [t for t in tensors_in((args, kwargs)) if _key(t) in self.keys]
        if not known or _asks_only(func) or _copies_bytes(func, args):
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            with self:  # a composite operation: look at what it is made of
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if not getattr(func, "is_view", False):
            for tensor in known:
                self.read(tensor, str(func))
        return func(*args, **kwargs)


class DispatchGuard(ReadMode):  # type: ignore[no-untyped-call]
    """Raises StateError for each read of a released parameter, or of a host copy during a pass.

    Between passes a host copy may be read: ``iter_weights`` hands it out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watched: list[Mapping[str, Component]] = []

    def watch(self, components: Mapping[str, Component]) -> None:
        """Guard these too, as long as the mapping holds them."""
        self._watched.append(components)
        for _, unit, binding in bindings_of(components):
            self.keys.add(storage_key(binding.placeholder))
            if unit.host is not None:
                self.keys.add(storage_key(unit.host))

    def read(self, tensor: torch.Tensor, op: str) -> None:
        key = storage_key(tensor)
        for components in self._watched:
            for component, unit, binding in bindings_of(components):
                if storage_key(binding.placeholder) == key:
                    what, where = weight_of(component, unit, binding), "it is released"
                elif unit.host is not None and storage_key(unit.host) == key:
                    if all(c.passing is None for c in components.values()):
                        return
                    what, where = _within(component, unit, tensor), "this is its host copy"
                else:
                    continue
                raise StateError(
                    f"{op} reads {what.parameter} of {what.component} outside the call of its "
                    f"unit {what.unit}: {where}; attach with keep_in_trunk for such a weight"
                )


def bindings_of(
    components: Mapping[str, Component],
) -> Iterator[tuple[Component, Unit, Binding]]:
    """Every parameter that can be bound and released."""
    for component in components.values():
        for unit in component.units:
            for binding in unit.bindings:
                yield component, unit, binding


def weight_of(component: Component, unit: Unit, binding: Binding) -> Weight:
    names = {id(parameter): name for name, parameter in unit.parameters.items()}
    return Weight(component.name, unit.name, names[id(binding.parameter)])


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments, also those in lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def _within(component: Component, unit: Unit, tensor: torch.Tensor) -> Weight:
    """The parameter that begins at or before this view of a host copy."""
    at = int(tensor.storage_offset()) * tensor.element_size()
    before = [binding for binding in unit.bindings if binding.byte_offset <= at]
    return weight_of(component, unit, max(before, key=lambda binding: binding.byte_offset))


def _key(tensor: torch.Tensor) -> int:
    return storage_key(tensor) if tensor.layout is torch.strided else 0


def _asks_only(func: Any) -> bool:
    name = getattr(getattr(func, "overloadpacket", None), "__name__", "")
    return name in _METADATA or name.startswith("new_") or name.endswith("_like")


def _copies_bytes(func: Any, args: tuple[Any, ...]) -> bool:
    """The engine's own copies: from bytes to bytes. Nobody else sees a weight as bytes."""
    if func is not torch.ops.aten.copy_.default:
        return False
    return all(t.dtype is torch.uint8 and t.dim() == 1 for t in args[:2])
