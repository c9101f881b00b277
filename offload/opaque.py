"""Parameters whose bytes cannot be moved: some quantisers' classes, refused before anything moves.

A subclass that says what it is made of (``is_traceable_wrapper_subclass``) stays on the card as a
whole, and one that only adds settings to its bytes moves like any other. It knows no quantiser.
"""

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from offload.errors import StateError


def refuse_opaque(name: str, root: nn.Module) -> None:
    """StateError where a parameter would be moved by halves."""
    for path, parameter in root.named_parameters():
        if type(parameter) is nn.Parameter:
            continue  # nearly all
        found = "" if is_traceable_wrapper_subclass(parameter) else _what_stays_behind(parameter)
        if found:
            raise StateError(
                f"{name}.{path} is a {type(parameter).__name__}, which {found}: it cannot be "
                "moved between host and card; load this component in another format"
            )


def _what_stays_behind(parameter: nn.Parameter) -> str:
    if is_lazy(parameter):
        return "has no memory yet"
    if parameter.numel() and not _has_memory(parameter):
        return "has no memory of its own"
    beside = sorted(key for key, value in vars(parameter).items() if _holds_tensors(value))
    return f"keeps tensors beside its data ({', '.join(beside)})" if beside else ""


def _has_memory(parameter: nn.Parameter) -> bool:
    try:
        return parameter.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def _holds_tensors(value: object) -> bool:
    """Itself, in a collection, or in an object's attributes."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        return any(_holds_tensors(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(item) for item in value)
    return any(isinstance(item, torch.Tensor) for item in getattr(value, "__dict__", {}).values())
