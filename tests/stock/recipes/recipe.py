"""What a stock pipeline of these tests is: how to build it, and what is asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """One pipeline with random weights; ``calls`` are the kinds of requests made of it."""

    name: str
    build: Callable[[], Any]
    calls: tuple[Mapping[str, Any], ...]
    prepare: Callable[[Any], None] = lambda pipeline: None  # what the loader does before attach

    def make(self) -> Any:
        """The pipeline, on the host, with weights that follow from one seed."""
        torch.manual_seed(0)
        pipeline = self.build()
        pipeline.set_progress_bar_config(disable=True)
        for module in modules_of(pipeline).values():
            module.eval().requires_grad_(False)
        return pipeline


def modules_of(pipeline: Any) -> dict[str, nn.Module]:
    """The parts that hold weights, under the pipeline's own names."""
    parts = pipeline.components.items()
    return {name: part for name, part in parts if isinstance(part, nn.Module)}


def draw(pipeline: Any, call: Mapping[str, Any], seed: int = 5) -> torch.Tensor:
    """One stock call, as the floats that it returns."""
    generator = torch.Generator().manual_seed(seed)
    result = pipeline(generator=generator, output_type="pt", **call)
    output = result.frames if hasattr(result, "frames") else result.images
    return torch.stack(list(output)) if isinstance(output, list) else output
