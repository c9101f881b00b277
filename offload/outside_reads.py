"""Finds weights that are read outside their own unit's call, while a first request runs.

Such a read is served with a copy of the weight, so that one request shows them all; then they
belong in the trunk, which is there for the whole run. For the warm-up: it costs time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from offload.component import Component
from offload.guard import ReadMode, Weight, bindings_of, tensors_in, weight_of
from offload.survey import storage_key
from offload.unit import Binding, Unit, UnitState

Found = dict[str, dict[str, str]]  # component -> parameter -> one sentence

# A released parameter answers these wrongly, and without an error.
_SIZES = frozenset(
    {
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.stride,
        torch.Tensor.__len__,
        torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
        torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
        torch.Tensor.nbytes.__get__,  # type: ignore[attr-defined]
    }
)
# It answers these rightly; others are found out by trying.
_ASKS = frozenset(
    {
        torch.Tensor.is_floating_point,
        torch.Tensor.is_complex,
        torch.Tensor.element_size,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
    }
)


@contextmanager
def outside_reads(components: Mapping[str, Component], device: torch.device) -> Iterator[Found]:
    """What is read outside its unit's call within the block; each parameter once."""
    found: Found = {}
    reads = _Reads(found)
    with reads, _Served(components, device, reads):
        yield found


class _Reads(ReadMode):  # type: ignore[no-untyped-call]
    """Notes who read a placeholder, or a copy that was served in its place."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._found = found
        self._weights: dict[int, Weight] = {}
        self.count = 0

    def know(self, tensor: torch.Tensor, weight: Weight) -> None:
        """The caller keeps ``tensor`` alive."""
        self._weights[storage_key(tensor)] = weight
        self.keys.add(storage_key(tensor))

    def read(self, tensor: torch.Tensor, op: str) -> None:
        self.note(self._weights[storage_key(tensor)], op)

    def note(self, weight: Weight, op: str) -> None:
        self.count += 1
        self._found.setdefault(weight.component, {}).setdefault(
            weight.parameter,
            f"{weight.component}: {weight.parameter} is read outside the call of its unit "
            f"{weight.unit} ({op})",
        )


@dataclass(slots=True)
class _Lent:
    """One parameter that comes and goes."""

    component: Component
    unit: Unit
    binding: Binding
    weight: Weight
    copy: torch.Tensor | None = None  # card; served in its place

    @property
    def is_away(self) -> bool:
        """Whether it is not there, or only happens to be: its unit is not in a call."""
        run = self.component.run
        if self.unit.state is UnitState.RELEASED:
            return True
        return run is not None and self.unit not in (run.trunk, *run.calling)


class _Served(TorchFunctionMode):
    """Calls every function of torch with weights where placeholders were given."""

    def __init__(
        self, components: Mapping[str, Component], device: torch.device, reads: _Reads
    ) -> None:
        super().__init__()
        self._device = device
        self._reads = reads
        self._lent: dict[int, _Lent] = {}
        for component, unit, binding in bindings_of(components):
            if unit.host is not None:
                weight = weight_of(component, unit, binding)
                self._lent[id(binding.parameter)] = _Lent(component, unit, binding, weight)
                reads.know(binding.placeholder, weight)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__set__" or func in _ASKS:  # the engine binds parameters all the time
            return func(*args, **kwargs)
        away = [lent for lent in map(self._find, tensors_in((args, kwargs))) if lent is not None]
        if not away:
            return func(*args, **kwargs)
        if func in _SIZES:
            return self._size(func, args, away[0])
        if name == "__get__":
            attribute = func(*args)
            if not isinstance(attribute, torch.Tensor):
                return attribute
        return self._call(func, args, kwargs)

    def _find(self, tensor: torch.Tensor) -> _Lent | None:
        lent = self._lent.get(id(tensor))
        return lent if lent is not None and lent.is_away else None

    def _size(self, func: Callable[..., Any], args: tuple[Any, ...], lent: _Lent) -> Any:
        """Wrong sizes count while the component computes; else somebody only counts parameters."""
        if lent.component.passing is None:
            return func(*args)
        self._reads.note(lent.weight, "its size is asked")
        assert lent.unit.host is not None
        return func(lent.binding.view(lent.unit.host), *args[1:])

    def _call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        count = self._reads.count
        result = func(*self._served(args), **self._served(kwargs))
        if self._reads.count == count and next(tensors_in(result), None) is None:
            return func(*args, **kwargs)  # nothing was computed: an answer about the tensor itself
        return result

    def _served(self, values: Any) -> Any:
        if isinstance(values, torch.Tensor):
            lent = self._find(values)
            return values if lent is None else self._copy_of(lent)
        if type(values) in (list, tuple):
            return type(values)(self._served(value) for value in values)
        if type(values) is dict:
            return {key: self._served(value) for key, value in values.items()}
        return values

    def _copy_of(self, lent: _Lent) -> torch.Tensor:
        if lent.copy is None:
            assert lent.unit.host is not None
            with torch.inference_mode(False), torch.no_grad():
                lent.copy = lent.binding.view(lent.unit.host).to(self._device, copy=True)
            self._reads.know(lent.copy, lent.weight)
        return lent.copy
