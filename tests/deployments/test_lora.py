"""Guarantee: a LoRA on the demo pipeline draws as without Tenure, and leaves without a trace.

Loaded, unloaded, fused and unfused by stock calls, within ``suspended()`` or unannounced.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from torch import nn

from deployments.paths import resolve
from offload import Residency, SimulatedCard, StateError
from offload.facts import aligned
from tests.offload.nets import F, P, S, plan_for
from tests.stock.recipes import modules_of

CHECKPOINT = resolve("deployments/demo/checkpoint")
PLANS = {
    "all permanent": [P],
    "all forward": [F],
    "streamed": [S],
    "mixed thirds": [P, F, S],
    "mixed halves": [P, S],
}
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
three_plans = pytest.mark.parametrize(
    "lifetimes", [[P], [S], [P, F, S]], ids=["all permanent", "streamed", "mixed thirds"]
)
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
announced_or_not = pytest.mark.parametrize("announced", [True, False], ids=["suspended", "at once"])


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


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """One for every test: each unloads its adapters and detaches."""
    return load()


@pytest.fixture(scope="module")
def adapters(pipeline: Any) -> list[Adapter]:
    return [new_adapter(pipeline.transformer, seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def pictures(adapters: list[Adapter]) -> dict[str, torch.Tensor]:
    """Drawn without Tenure: stock diffusers, stock calls."""
    plain = load()
    drawn = {"none": draw(plain)}
    for name, adapter in zip(["first", "second"], adapters, strict=True):
        plain.load_lora_weights(adapter, adapter_name=name)
    for name in ("first", "second"):
        plain.set_adapters(name)
        drawn[name] = draw(plain)
    plain.set_adapters(["first", "second"], [0.7, 0.4])
    drawn["both"] = draw(plain)
    plain.unload_lora_weights()
    plain.load_lora_weights(adapters[0], adapter_name="first")
    plain.fuse_lora(lora_scale=0.5)
    drawn["fused"] = draw(plain)
    plain.unfuse_lora()
    plain.unload_lora_weights()
    drawn["unfused"] = draw(plain)
    for one, other in [("first", "second"), ("none", "first"), ("fused", "both")]:
        assert not torch.equal(drawn[one], drawn[other])
    return drawn


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


@pytest.fixture
def manage(pipeline: Any) -> Iterator[Callable[[Any], Managed]]:
    made: list[Managed] = []

    def manage_(lifetimes: Any) -> Managed:
        made.append(Managed(pipeline, lifetimes))
        return made[-1]

    yield manage_
    for managed in made:
        managed.residency.detach()
        assert managed.card.ledger() == {}


# --- loaded and unloaded ---------------------------------------------------------------------
@any_plan
@announced_or_not
def test_a_loaded_adapter_draws_as_in_the_plain_pipeline_and_unloading_restores_it(
    lifetimes, announced: bool, manage, adapters: list[Adapter], pictures
) -> None:
    managed = manage(lifetimes)
    managed.check(pictures["none"])
    with managed.change(announced):
        managed.pipeline.load_lora_weights(adapters[0], adapter_name="first")
    managed.check(pictures["first"], card_bytes(adapters[0]), requests=2)
    with managed.change(announced):
        managed.pipeline.unload_lora_weights()
    managed.check(pictures["none"], requests=2)


@three_plans
@announced_or_not
def test_two_adapters_are_chosen_mixed_switched_off_and_deleted(
    lifetimes, announced: bool, manage, adapters: list[Adapter], pictures
) -> None:
    managed = manage(lifetimes)
    pipeline, both = managed.pipeline, sum(map(card_bytes, adapters))
    for name, adapter in zip(["first", "second"], adapters, strict=True):
        with managed.change(announced):
            pipeline.load_lora_weights(adapter, adapter_name=name)
    for name in ("second", "first"):
        pipeline.set_adapters(name)
        managed.check(pictures[name], both)
    pipeline.set_adapters(["first", "second"], [0.7, 0.4])
    managed.check(pictures["both"], both)
    pipeline.disable_lora()
    managed.check(pictures["none"], both)
    pipeline.enable_lora()
    with managed.change(announced):
        pipeline.delete_adapters("second")
        pipeline.set_adapters("first")
    managed.check(pictures["first"], card_bytes(adapters[0]))
    with managed.change(announced):
        pipeline.unload_lora_weights()
    managed.check(pictures["none"])


@three_plans
def test_an_adapter_loaded_before_attach_moves_with_its_layers(
    lifetimes, pipeline: Any, adapters: list[Adapter], pictures
) -> None:
    pipeline.load_lora_weights(adapters[0], adapter_name="first")
    managed = Managed(pipeline, lifetimes)
    managed.check(pictures["first"])
    managed.residency.detach()
    assert torch.equal(draw(pipeline), pictures["first"])
    pipeline.unload_lora_weights()
    assert torch.equal(draw(pipeline), pictures["none"])


@three_plans
def test_detach_gives_back_the_pipeline_with_its_adapter(
    lifetimes, pipeline: Any, adapters: list[Adapter], pictures
) -> None:
    managed = Managed(pipeline, lifetimes)
    pipeline.load_lora_weights(adapters[0], adapter_name="first")
    managed.check(pictures["first"], card_bytes(adapters[0]))
    managed.residency.detach()
    assert managed.card.ledger() == {}
    assert torch.equal(draw(pipeline), pictures["first"])
    pipeline.unload_lora_weights()
    assert torch.equal(draw(pipeline), pictures["none"])


@three_plans
def test_an_adapter_of_a_file_is_loaded_and_saved_again(
    lifetimes, manage, adapters: list[Adapter], pictures, tmp_path: Path
) -> None:
    managed = manage(lifetimes)
    pipeline = managed.pipeline
    pipeline.save_lora_weights(
        tmp_path,
        transformer_lora_layers={
            name.removeprefix("transformer."): weight for name, weight in adapters[0].items()
        },
    )
    with managed.residency.suspended():
        pipeline.load_lora_weights(tmp_path, adapter_name="first")
    managed.check(pictures["first"], card_bytes(adapters[0]))
    pipeline.unload_lora_weights()
    managed.check(pictures["none"])


# --- fused -----------------------------------------------------------------------------------
@any_plan
@announced_or_not
def test_a_fused_adapter_draws_as_in_the_plain_pipeline_and_unfusing_takes_it_out(
    lifetimes, announced: bool, adapters: list[Adapter], pictures
) -> None:
    """Unfusing subtracts what was added: plain diffusers rounds too, and to the same bits.

    It must be announced: the pipeline's method reaches for each layer's weights by itself.
    """
    own = load()
    managed = Managed(own, lifetimes)
    with managed.change(announced):
        own.load_lora_weights(adapters[0], adapter_name="first")
        own.fuse_lora(lora_scale=0.5)
    managed.check(pictures["fused"], card_bytes(adapters[0]))
    with managed.residency.suspended():
        own.unfuse_lora()
        own.unload_lora_weights()
    managed.check(pictures["unfused"])
    managed.residency.detach()
    assert torch.equal(draw(own), pictures["unfused"])


@three_plans
def test_a_fused_adapter_needs_no_bytes_once_it_is_unloaded(
    lifetimes, adapters: list[Adapter], pictures
) -> None:
    own = load()
    managed = Managed(own, lifetimes)
    with managed.residency.suspended():
        own.load_lora_weights(adapters[0], adapter_name="first")
        own.fuse_lora(lora_scale=0.5)
        own.unload_lora_weights()
    managed.check(pictures["fused"])
    managed.residency.detach()
    assert torch.equal(draw(own), pictures["fused"])


# --- in mid-request --------------------------------------------------------------------------
@three_plans
def test_an_adapter_cannot_be_loaded_in_mid_request(
    lifetimes, manage, adapters: list[Adapter], pictures
) -> None:
    managed = manage(lifetimes)
    with managed.residency.request():
        assert torch.equal(draw(managed.pipeline), pictures["none"])
        with pytest.raises(StateError, match="cannot suspend while a request is running"):
            managed.pipeline.load_lora_weights(adapters[0], adapter_name="first")
    managed.check(pictures["none"])
