"""Counts the bytes of tensors that live, by watching every operation that makes one.

A storage counts once, from the operation that first returned it until its memory really dies;
views and operations in place add nothing. What was there before, and what the engine hands out, is
not counted, nor what a kernel takes and gives back within itself. It works on the meta device too,
so that the activations of a model can be counted on a machine that could not hold them.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from offload.facts import aligned

_ONE_PIECE = "scaled_dot_product_attention"  # on cards; on the meta device torch takes it apart
_FRESH = torch.ops.aten.lift_fresh.default  # shows what was just made unseen, as of a list


class LiveLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """On while it is entered; storages that it counted are followed for as long as they live.

    ``grown`` hears of each storage, or growth of one, with the bytes that it adds: an error that it
    raises leaves the operation. One thread.
    """

    supports_higher_order_operators = True

    def __init__(self, grown: Callable[[int], None] = lambda num_bytes: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0  # since the last ``mark``
        self.num_operations = 0
        self.overhead_s = 0.0  # of the wall clock: what the counting itself took
        self._grown = grown
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}  # storage -> its end, its bytes
        self._composite: dict[Any, bool] = {}

    def mark(self) -> int:
        """Begin another interval; returns the peak of the one that ends."""
        peak, self.peak_bytes = self.peak_bytes, self.current_bytes
        return peak

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_composite(func, args):  # under inference mode: look at what it is made of
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        began_s = time.perf_counter()
        self.num_operations += 1
        if func is _FRESH or not getattr(func, "is_view", False):
            self._look(func, args, kwargs, result)
        self.overhead_s += time.perf_counter() - began_s
        return result

    def _is_composite(self, func: Any, args: tuple[Any, ...]) -> bool:
        known = self._composite.get(func)
        if known is None:
            known = self._composite[func] = _is_made_of_others(func)
        if known and func.overloadpacket.__name__ == _ONE_PIECE:
            return not args[0].is_meta
        return known

    def _look(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Count what ``func`` returned and did not get; what it got may show other memory now."""
        made = {storage._cdata: storage for storage in _storages(result)}
        if not made:
            return
        new = [key for key in made if key not in self._held]
        if new and func is not _FRESH:
            given = {storage._cdata for storage in _storages((args, kwargs))}
            new = [key for key in new if key not in given]
        for key, storage in made.items():
            if key in self._held or key in new:
                self._note(key, storage)

    def _note(self, key: int, storage: torch.UntypedStorage) -> None:
        """A storage that is new, or that an operation in place has resized."""
        end, before = self._held.get(key, (None, 0))
        size = aligned(storage.nbytes())
        if size == before and end is not None:
            return
        self._held[key] = (end or weakref.ref(storage, lambda _: self._died(key)), size)
        self.current_bytes += size - before
        if size > before:
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
            self._grown(size - before)

    def _died(self, key: int) -> None:
        self.current_bytes -= self._held.pop(key)[1]


def _is_made_of_others(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload):
        return False
    name = func.name()  # type: ignore[no-untyped-call]
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, composite)


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    """Of the tensors among arguments or results; a wrapper's are those that it is made of."""
    if isinstance(values, torch.Tensor):
        if is_traceable_wrapper_subclass(values):
            names, _ = values.__tensor_flatten__()
            yield from _storages([getattr(values, name) for name in names])
        elif values.layout is torch.strided:
            yield values.untyped_storage()
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _storages(value)
    elif isinstance(values, dict):
        yield from _storages(list(values.values()))
