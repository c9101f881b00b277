"""The demo pipeline as stock diffusers loads it, a short drawing of it, and it under a plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from diffusers import DiffusionPipeline

from deployments.paths import resolve
from offload import Residency, SimulatedCard
from tests.offload.nets import plan_for
from tests.stock.recipes import modules_of

CHECKPOINT = resolve("deployments/demo/checkpoint")


def load() -> Any:
    pipeline = DiffusionPipeline.from_pretrained(str(CHECKPOINT), dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    for module in modules_of(pipeline).values():
        module.requires_grad_(False)
    return pipeline


def draw(pipeline: Any, at_step: Callable[[], object] | None = None) -> torch.Tensor:
    def at_end(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if at_step is not None and step == 0:
            at_step()
        return {}

    result = pipeline(
        prompt="a red circle",
        width=64,
        height=64,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        output_type="pt",
        callback_on_step_end=at_end,
    )
    picture: torch.Tensor = result.images
    return picture


class Managed:
    """The pipeline under a plan, and what it holds."""

    def __init__(self, pipeline: Any, lifetimes: Any) -> None:
        self.pipeline = pipeline
        self.plan = plan_for(modules_of(pipeline), lifetimes)
        self.card = SimulatedCard(memory_bytes=1 << 30, bytes_per_s=2e9)
        self.residency = Residency.attach(modules_of(pipeline), card=self.card, plan=self.plan)
        self.host_bytes = self.residency.snapshot().host.store_bytes

    def change(self, announced: bool) -> AbstractContextManager[None]:
        return self.residency.suspended() if announced else nullcontext()

    def check(self, expected: torch.Tensor, added_bytes: int = 0, requests: int = 1) -> None:
        """The first request finds a change, the next is routine."""
        for _ in range(requests):
            assert torch.equal(draw(self.pipeline), expected)
            assert self.card.usage().allocated_bytes == self.plan.standing_bytes + added_bytes
            assert self.card.num_copies_in_flight == 0
        assert self.residency.snapshot().host.store_bytes == self.host_bytes
