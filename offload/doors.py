"""Wraps the calls through which a component's work begins: doors, layers, leaves of the trunk.

A wrapper stands in the instance's own ``__dict__``, under anything that others wrap around it
later, and passes straight through once it is taken off. It decides nothing: it calls the component.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import nn

DOOR_NAMES = ("forward", "encode", "decode", "generate", "quantize")
_ABSENT = object()

Call = Callable[..., Any]


class Guarded(Protocol):
    """Runs ``call`` inside whatever the owner does around it."""

    def __call__(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...


class Wrapper:
    """One replaced method of one module instance."""

    def __init__(self, module: nn.Module, name: str, around: Guarded) -> None:
        self.module, self.name = module, name
        self.before = module.__dict__.get(name, _ABSENT)
        self.original: Call = getattr(module, name)
        self._around: Guarded | None = around
        original = self.original

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self._around is None:
                return original(*args, **kwargs)
            return self._around(original, args, kwargs)

        self.wrapped = wrapped
        module.__dict__[name] = wrapped

    def remove(self) -> None:
        """Restore the method; where others wrapped it since, let calls pass through."""
        self._around = None  # a wrapper that stays behind holds on to nothing of ours
        if self.module.__dict__.get(self.name) is not self.wrapped:
            return
        if self.before is _ABSENT:
            del self.module.__dict__[self.name]
        else:
            self.module.__dict__[self.name] = self.before


def door_names(root: nn.Module) -> list[str]:
    """The methods of this module through which a run may begin."""
    features = [n for n in dir(type(root)) if n.startswith("get_") and n.endswith("_features")]
    tiled = [n for n in dir(type(root)) if n.startswith("tiled_")]
    return [name for name in (*DOOR_NAMES, *features, *tiled) if _is_method(root, name)]


def _is_method(root: nn.Module, name: str) -> bool:
    """A submodule may bear a door's name (a quantizer): its own call is guarded as a leaf."""
    value = getattr(root, name, None)
    return callable(value) and not isinstance(value, nn.Module)


def argument_names(call: Call) -> tuple[str, ...]:
    """Positional parameter names of a bound method, for telling kinds of passes apart."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(call).parameters.values()
    return tuple(p.name for p in parameters if p.kind in positional)


def given(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Sorted names of the arguments that are not None."""
    by_place = [
        names[i] if i < len(names) else f"argument {i}"
        for i, value in enumerate(args)
        if value is not None
    ]
    return tuple(sorted([*by_place, *(key for key, value in kwargs.items() if value is not None)]))
