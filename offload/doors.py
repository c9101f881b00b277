"""The names of the calls through which a component's work begins, and what tells passes apart."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from offload.wrapper import Call

DOOR_NAMES = ("forward", "encode", "decode", "generate", "quantize")


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
