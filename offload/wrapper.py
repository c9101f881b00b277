"""Stands around one method of one module instance, under whatever others wrap around it.

It decides nothing: it calls what it was given. Taken off, it passes straight through, and where
nobody wrapped it since it is gone without a trace.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch import nn

COMPILED = "_compiled_call_impl"  # what nn.Module calls after module.compile()
_ABSENT = object()

Call = Callable[..., Any]


class Guarded(Protocol):
    """Runs ``call`` inside whatever the owner does around it."""

    def __call__(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...


class Wrapper:
    """One replaced method of one module instance.

    ``innermost`` goes beneath diffusers' hooks, so that a call that a cache skips is not seen. A
    compiled module is wrapped outside its compiled function: no new graph, no break.
    """

    def __init__(
        self, module: nn.Module, name: str, around: Guarded, *, innermost: bool = False
    ) -> None:
        self.module = module
        if name == "forward" and is_compiled(module):
            name = COMPILED
        self.name = name
        place = _innermost(module, name) if innermost else (module, name)
        self._holder: Any
        self._holder, self._slot = place
        self.before = _own(self._holder, self._slot)
        self.original: Call = getattr(self._holder, self._slot)
        self._around: Guarded | None = around
        original = self.original

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self._around is None:
                return original(*args, **kwargs)
            return self._around(original, args, kwargs)

        self.wrapped = wrapped
        _put(self._holder, self._slot, wrapped)

    @property
    def is_bypassed(self) -> bool:
        """Whether the module was compiled since, which would trace this wrapper or drop it."""
        if self.name == COMPILED:
            return _own(self.module, COMPILED) is not self.wrapped
        return self.name == "forward" and is_compiled(self.module)

    def remove(self) -> None:
        """Restore the method; where others wrapped it since, let calls pass through."""
        self._around = None  # a wrapper that stays behind holds on to nothing of ours
        for holder, slot in _places(self.module, self.name):
            if _own(holder, slot) is not self.wrapped:
                continue
            moved = (holder, slot) != (self._holder, self._slot)  # by a hook put on or off since
            _put(holder, slot, self._plain(holder, slot) if moved else self.before)

    def _plain(self, holder: Any, slot: str) -> Any:
        """What stands there without us: nothing, where it is the class's own method."""
        method = getattr(self.original, "__func__", None)
        is_class_method = method is not None and method is getattr(type(holder), slot, None)
        return _ABSENT if is_class_method else self.original


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile()`` is in force."""
    return getattr(module, COMPILED, None) is not None


def hook_references(module: nn.Module) -> list[Any]:
    """The links of diffusers' hook chain on a module, innermost first; empty without one."""
    return list(getattr(module.__dict__.get("_diffusers_hook"), "_fn_refs", []))


def _innermost(module: nn.Module, name: str) -> tuple[Any, str]:
    references = hook_references(module) if name == "forward" else []
    if not references:
        return module, name
    first = references[0]
    return first, "forward" if first.original_forward is None else "original_forward"


def _places(module: nn.Module, name: str) -> Iterator[tuple[Any, str]]:
    yield module, name
    if name == "forward":
        for reference in hook_references(module):
            yield reference, "original_forward"
            yield reference, "forward"


def _own(holder: Any, slot: str) -> Any:
    return holder.__dict__.get(slot, _ABSENT)


def _put(holder: Any, slot: str, value: Any) -> None:
    if value is _ABSENT:
        del holder.__dict__[slot]
    else:
        holder.__dict__[slot] = value
