"""A unit's parameters and what they are bound to. It issues no copy and waits for nothing.

A Parameter object is never replaced: only its data is, by views that are made once per place and
kept for the run. Released parameters get placeholders that make nearly every use raise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from offload.errors import StateError
from offload.facts import aligned
from offload.plan import Lifetime
from offload.survey import FoundUnit, storage_key, storage_spans


class UnitState(StrEnum):
    """Where a unit's parameters point."""

    LOADED = "loaded"  # at what the checkpoint gave; counts as host memory until hosted or placed
    BOUND = "bound"  # at card memory that holds the weights, or will before the next wait ends
    RELEASED = "released"  # at placeholders of size zero; the weights are in the host copy only
    ASLEEP = "asleep"  # at placeholders; a permanent unit's are in its file or saved on the host


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of one storage, and where they start in the unit's memory."""

    key: int
    first: int  # byte offset in the storage as loaded
    num_bytes: int
    offset: int  # byte offset in the unit, a multiple of 256


@dataclass(frozen=True, slots=True)
class Binding:
    """How one parameter reads its span."""

    parameter: nn.Parameter
    byte_offset: int  # in the unit's memory
    size: torch.Size
    stride: tuple[int, ...]
    placeholder: torch.Tensor

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The parameter's data as it lies in ``memory`` (uint8, one unit long)."""
        start = memory.storage_offset() + self.byte_offset
        view = torch.empty(0, dtype=self.placeholder.dtype, device=memory.device)
        item = view.element_size()
        assert start % item == 0, "every storage starts on a 256-byte boundary"
        return view.set_(memory.untyped_storage(), start // item, self.size, self.stride)


def placeholder_of(parameter: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Own dtype, on the card, all sizes zero; a matrix or a scalar becomes (0,).

    Never (0, n): F.linear accepts it silently, and an embedding lookup over it kills the context.
    """
    dims = parameter.dim() if parameter.dim() not in (0, 2) else 1
    return torch.empty((0,) * dims, dtype=parameter.dtype, device=device)


@dataclass(slots=True, eq=False)
class Unit:
    """What moves as one. ``memory`` is uint8 (num_bytes,): its permanent, arena or window place."""

    name: str
    list_name: str | None
    module: nn.Module | None
    spans: tuple[Span, ...]
    bindings: tuple[Binding, ...]
    lifetime: Lifetime
    parameters: dict[str, nn.Parameter]
    state: UnitState = UnitState.LOADED
    memory: torch.Tensor | None = None  # card, uint8 1-D, where it is bound now
    host: torch.Tensor | None = None  # host copy, uint8 1-D; None for permanent units
    num_bytes: int = field(init=False)  # on the card, each span from a boundary of its own
    _views: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def build(cls, found: FoundUnit, lifetime: Lifetime, device: torch.device) -> "Unit":
        """Read the layout of a loaded unit; placeholders are made outside inference mode."""
        plain = [p for p in found.parameters.values() if not is_traceable_wrapper_subclass(p)]
        spans = _spans(plain)
        with torch.inference_mode(False), torch.no_grad():
            bindings = tuple(_bindings(plain, spans, device))
        return cls(
            found.name, found.list_name, found.module, spans, bindings, lifetime, found.parameters
        )

    def __post_init__(self) -> None:
        self.num_bytes = sum(aligned(span.num_bytes) for span in self.spans)

    def loaded_bytes(self) -> Iterable[tuple[Span, torch.Tensor]]:
        """Each span with its bytes as loaded (uint8, host); nothing is copied."""
        assert self.state is UnitState.LOADED
        by_key = {storage_key(b.parameter): b.parameter for b in self.bindings}
        for span in self.spans:
            storage = by_key[span.key].untyped_storage()
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
            yield span, flat.set_(storage, span.first, (span.num_bytes,), (1,))

    def bind(self, memory: torch.Tensor) -> None:
        """Point every parameter into ``memory``. Views are cached by address until ``forget``."""
        assert memory.numel() == self.num_bytes
        views = self._views.get(memory.data_ptr())
        if views is None:
            with torch.inference_mode(False), torch.no_grad():
                views = [binding.view(memory) for binding in self.bindings]
            self._views[memory.data_ptr()] = views
        for binding, view in zip(self.bindings, views, strict=True):
            binding.parameter.data = view
        self.memory, self.state = memory, UnitState.BOUND

    def release(self) -> None:
        """Point every parameter at its placeholder. Copies nothing: weights do not change."""
        assert self.lifetime is not Lifetime.PERMANENT, f"{self.name} is permanent"
        for binding in self.bindings:
            binding.parameter.data = binding.placeholder
        self.memory, self.state = None, UnitState.RELEASED

    def park(self) -> None:
        """Point a permanent unit's parameters at placeholders: for sleep, and nothing else."""
        for binding in self.bindings:
            binding.parameter.data = binding.placeholder
        self.forget()
        self.memory, self.state = None, UnitState.ASLEEP

    def keep_changes(self, host: torch.Tensor) -> bool:
        """Write data that somebody put in a parameter's place back; whether there was any."""
        replaced = False
        with torch.inference_mode(False), torch.no_grad():
            for binding in self.bindings:
                view = binding.view(host)
                now = binding.parameter.data
                if now.data_ptr() == view.data_ptr() and now.stride() == view.stride():
                    continue
                if (now.shape, now.dtype) != (view.shape, view.dtype):
                    raise StateError(
                        f"a weight of {self.name} changed from {view.dtype} {tuple(view.shape)} to "
                        f"{now.dtype} {tuple(now.shape)}: detach() before such a change"
                    )
                view.copy_(now.clone())  # it may lie in the same memory in another order
                replaced = True
        return replaced

    def forget(self) -> None:
        """Drop the cached views, which would keep a run's memory alive."""
        self._views.clear()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every parameter's weights by name, wherever they are now, without moving them."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        out: dict[str, torch.Tensor] = dict(self.parameters)
        if self.state is UnitState.ASLEEP:
            raise StateError(f"the weights of {self.name} are asleep: call residency.wake() first")
        if self.state is UnitState.RELEASED and self.host is not None:
            for binding in self.bindings:
                out[names[id(binding.parameter)]] = binding.view(self.host)
        return out


def _spans(parameters: Iterable[nn.Parameter]) -> tuple[Span, ...]:
    spans, offset = [], 0
    for key, (first, end) in storage_spans(parameters).items():
        spans.append(Span(key, first, end - first, offset))
        offset += aligned(end - first)
    return tuple(spans)


def _bindings(
    parameters: Iterable[nn.Parameter], spans: tuple[Span, ...], device: torch.device
) -> Iterable[Binding]:
    by_key = {span.key: span for span in spans}
    for parameter in parameters:
        span = by_key.get(storage_key(parameter))
        if span is None:  # no element: nothing to move
            continue
        within = int(parameter.storage_offset()) * parameter.element_size() - span.first
        yield Binding(
            parameter,
            span.offset + within,
            parameter.size(),
            parameter.stride(),
            placeholder_of(parameter, device),
        )
