"""The demo pipeline with random LoRAs, as stock diffusers loads them, and under a plan."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import nn

from deployments.paths import resolve
from offload import Residency, SimulatedCard
from offload.facts import aligned
from tests.offload.nets import plan_for
from tests.stock.recipes import modules_of

CHECKPOINT = resolve("deployments/demo/checkpoint")
# In layers, in a list inside a layer, and in the trunk.
TARGETS = [
    *(f"transformer_blocks.{i}.attn.to_q" for i in (0, 1, 5, 11)),
    *(f"transformer_blocks.{i}.attn.to_out.0" for i in (0, 4, 6)),
    "transformer_blocks.7.attn.to_v",
    "img_in",
    "proj_out",
]
RANK = 3

Adapter = dict[str, torch.Tensor]


def load() -> Any:
    pipeline = DiffusionPipeline.from_pretrained(str(CHECKPOINT), dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    for module in modules_of(pipeline).values():
        module.requires_grad_(False)
    return pipeline


def draw(pipeline: Any) -> torch.Tensor:
    result = pipeline(
        prompt="a red circle",
        width=64,
        height=64,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        output_type="pt",
    )
    picture: torch.Tensor = result.images
    return picture


def new_adapter(transformer: nn.Module, seed: int) -> Adapter:
    """A random LoRA in the format that diffusers saves."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for target in TARGETS:
        out_features, in_features = transformer.get_submodule(target).weight.shape
        name = f"transformer.{target}"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, in_features, generator=generator) * 0.2
        weights[f"{name}.lora_B.weight"] = (
            torch.randn(out_features, RANK, generator=generator) * 0.2
        )
    return weights


def card_bytes(adapter: Adapter) -> int:
    return sum(aligned(weight.nbytes) for weight in adapter.values())


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
