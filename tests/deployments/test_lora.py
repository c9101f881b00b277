"""Guarantee: a LoRA on the demo pipeline draws as without Tenure, and leaves without a trace.

Loaded, unloaded, fused and unfused by stock calls, within ``suspended()`` or unannounced.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from offload import StateError
from tests.deployments.demo_pipeline import Managed, draw, load
from tests.deployments.lora import Adapter, card_bytes, new_adapter
from tests.offload.nets import F, P, S

PLANS = {
    "all permanent": [P],
    "all forward": [F],
    "streamed": [S],
    "mixed thirds": [P, F, S],
    "mixed halves": [P, S],
}
three_plans = pytest.mark.parametrize(
    "lifetimes", [[P], [S], [P, F, S]], ids=["all permanent", "streamed", "mixed thirds"]
)
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
announced_or_not = pytest.mark.parametrize("announced", [True, False], ids=["suspended", "at once"])


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
    """Unfusing subtracts what was added: plain diffusers rounds too, and to the same bits."""
    own = load()
    managed = Managed(own, lifetimes)
    with managed.change(announced):
        own.load_lora_weights(adapters[0], adapter_name="first")
        own.fuse_lora(lora_scale=0.5)
    managed.check(pictures["fused"], card_bytes(adapters[0]))
    with managed.change(announced):
        own.unfuse_lora()
    with managed.change(announced):
        own.unload_lora_weights()
    managed.check(pictures["unfused"])
    managed.residency.detach()
    assert torch.equal(draw(own), pictures["unfused"])
    assert not {"merge", "unmerge"} & {name for m in own.transformer.modules() for name in vars(m)}


@pytest.mark.parametrize("lifetimes", [[S], [P, F, S]], ids=["streamed", "mixed thirds"])
def test_an_adapter_that_would_leave_a_weight_in_mid_request_is_refused_before_it_does(
    lifetimes, adapters: list[Adapter], pictures
) -> None:
    """Switched off while fused, peft unmerges in the layer's call: the host copy would keep it."""
    own = load()
    managed = Managed(own, lifetimes)
    own.load_lora_weights(adapters[0], adapter_name="first")
    own.fuse_lora(lora_scale=0.5)
    own.disable_lora()
    for _ in range(2):
        with pytest.raises(StateError, match=r"unmerge\(\) of transformer changes weights, and no"):
            draw(own)
    own.enable_lora()
    managed.check(pictures["fused"], card_bytes(adapters[0]))
    own.unfuse_lora()
    own.unload_lora_weights()
    managed.check(pictures["unfused"])
    managed.residency.detach()


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
