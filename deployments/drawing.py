"""One picture without a server: the path of a replica, from loading to the last byte.

Knows the order load, attach, request, detach; prints through the functions it is given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Image

from deployments.config import AppConfig
from deployments.messages import GenerateJob
from deployments.progress import ProgressBar
from offload import RequestUsage

if TYPE_CHECKING:
    from offload import Card  # at run time it would import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What one job left."""

    images: list[Image]
    usage: RequestUsage
    load_s: float  # from the first byte read to the last weight placed
    warnings: tuple[str, ...]


def draw(
    config: AppConfig, job: GenerateJob, card: "Card", log: Callable[[str], None], bar: ProgressBar
) -> Drawing:
    """Load the model, place it on the card as planned, draw, and give everything back."""
    from deployments.pipeline import load_pipeline  # late: it imports torch and diffusers
    from offload import Residency

    began_s = time.perf_counter()
    pipeline = load_pipeline(config.model, config.components)
    pipeline.check(job)
    residency = Residency.attach(
        pipeline.components,
        card=card,
        spec=config.to_spec(),
        activation_bytes=config.activation_bytes,
        passes=config.passes,
        log=log,
        progress=lambda component, done, total: bar.show(f"placing {component}", done, total),
    )
    load_s = time.perf_counter() - began_s
    try:
        with residency.request() as usage:
            images = pipeline.generate(
                job, lambda step, of, _=None: bar.show("drawing", step, of), lambda: False
            )
    finally:
        residency.detach()
    size = config.model.size_warnings(job.width, job.height)
    warnings = (*size, *pipeline.warnings(job))
    return Drawing(images=images, usage=usage, load_s=load_s, warnings=warnings)
