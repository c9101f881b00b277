"""Float16 autoencoders that a pipeline computes with in float32.

Some stock pipelines (SDXL's, for one) convert a float16 VAE whose config says ``force_upcast`` to
float32 in mid-request, and back. Managed weights cannot change their dtype then, so such a VAE is
converted once, after loading, and from then on only says what a converted one would say. It knows
modules by their habits: neither diffusers nor residency.
"""

import inspect
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import nn

HALF, FULL = torch.float16, torch.float32


class _Upcast(nn.Module):
    """Float32 weights that were float16, so they are the numbers of an upcast in mid-request.

    ``dtype`` is the one last asked for: pipelines upcast only what says float16. The weights say
    float32 at any time, since pipelines cast latents to the dtype of a weight.
    """

    _said = HALF

    @property
    def dtype(self) -> torch.dtype:
        return self._said

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """To float16 or float32: only said. Anything else as the module's own class does it."""
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if dtype not in (HALF, FULL) or layout is not None:
            return super().to(*args, **kwargs)
        self._said = dtype
        return self if device is None else super().to(device, non_blocking=non_blocking)

    def half(self, *args: Any) -> Self:
        return self.to(HALF)

    def float(self, *args: Any) -> Self:
        return self.to(FULL)


def hold_upcast(pipeline_class: type, parts: Iterable[nn.Module]) -> None:
    """Convert each float16 part that such a pipeline would move to float32 in mid-request.

    A pipeline that never asks for it draws in float16, so its VAE stays as it was loaded.
    """
    if _asks_for_upcast(pipeline_class):
        for part in parts:
            if getattr(getattr(part, "config", None), "force_upcast", False):
                _upcast(part)


def rest(parts: Iterable[nn.Module]) -> None:
    """Back to float16, as a pipeline leaves them: an error in mid-request skips that."""
    for part in parts:
        if isinstance(part, _Upcast):
            part.half()


def _asks_for_upcast(pipeline_class: type) -> bool:
    methods = inspect.getmembers(pipeline_class, inspect.isfunction)
    return any("force_upcast" in inspect.unwrap(call).__code__.co_names for _, call in methods)


def _upcast(part: nn.Module) -> None:
    if next(part.parameters()).dtype is not HALF:
        return
    part.to(FULL)
    own = type(part)
    # Under its own name: pipelines and saved configs name the classes of their parts.
    about = {"__module__": own.__module__, "__doc__": own.__doc__}
    part.__class__ = type(own.__name__, (_Upcast, own), about)
