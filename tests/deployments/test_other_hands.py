"""Guarantee: what others do to a managed pipeline works or is refused, and is never silently wrong.

Stock calls on the demo pipeline: converting, saving, copying, sharing, rebuilding, offloading.
"""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from diffusers import DiffusionPipeline, QwenImage21Pipeline
from diffusers.hooks import apply_group_offloading

from offload import StateError
from tests.deployments.demo_pipeline import Managed, draw, load
from tests.offload.nets import F, P, S

PLANS = {"all permanent": [P], "all forward": [F], "streamed": [S], "mixed thirds": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
any_lending_plan = pytest.mark.parametrize(
    "lifetimes", [[S], [P, F, S]], ids=["streamed", "mixed thirds"]
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shared() -> Any:
    """For tests that leave the pipeline as it was."""
    return load()


@pytest.fixture(scope="module")
def picture(shared: Any) -> torch.Tensor:
    return draw(shared)


@pytest.fixture
def manage(shared: Any, picture: torch.Tensor) -> Iterator[Callable[[Any], Managed]]:
    """The shared pipeline under a plan; at the end it is detached and draws as before."""
    made: list[Managed] = []

    def manage_(lifetimes: Any) -> Managed:
        made.append(Managed(shared, lifetimes))
        return made[-1]

    yield manage_
    for managed in made:
        managed.residency.detach()
    assert torch.equal(draw(shared), picture)


# --- moving and converting -------------------------------------------------------------------
@any_plan
def test_moves_that_change_nothing_are_allowed_in_mid_request(lifetimes, manage, picture) -> None:
    managed = manage(lifetimes)
    pipeline = managed.pipeline

    def at_step() -> None:
        pipeline.to("cpu")
        pipeline.transformer.to(torch.float32)
        pipeline.vae.to(device="cpu", dtype=torch.float32)
        pipeline.text_encoder.float()

    assert torch.equal(draw(pipeline, at_step), picture)
    managed.check(picture)


@any_lending_plan
@pytest.mark.parametrize(
    "change",
    [
        lambda pipeline: pipeline.transformer.half(),
        lambda pipeline: pipeline.vae.to(torch.bfloat16),
        lambda pipeline: pipeline.text_encoder.to(dtype=torch.float16),
        lambda pipeline: pipeline.to(torch.float16),
        lambda pipeline: pipeline.transformer.transformer_blocks[0].half(),
    ],
    ids=["half", "to bfloat16", "to dtype", "pipeline", "layer"],
)
def test_a_conversion_in_mid_request_is_refused_and_the_next_picture_is_right(
    change, lifetimes, manage, picture
) -> None:
    managed = manage(lifetimes)
    with pytest.raises(StateError, match=r"is managed and stays torch\.float32"):
        draw(managed.pipeline, lambda: change(managed.pipeline))
    assert {p.dtype for p in managed.pipeline.transformer.parameters()} == {torch.float32}
    managed.check(picture)


# --- saving and copying ----------------------------------------------------------------------
@any_lending_plan
@pytest.mark.parametrize(
    "save",
    [
        lambda pipeline, folder: pipeline.transformer.state_dict(),
        lambda pipeline, folder: pipeline.transformer.save_pretrained(folder),
        lambda pipeline, folder: pipeline.text_encoder.save_pretrained(folder),
        lambda pipeline, folder: pipeline.save_pretrained(folder),
    ],
    ids=["state_dict", "diffusers part", "transformers part", "pipeline"],
)
def test_saving_weights_that_are_not_there_is_refused(
    save, lifetimes, manage, picture, tmp_path: Path
) -> None:
    managed = manage(lifetimes)
    with pytest.raises(StateError, match=r"call them within residency\.suspended\(\)"):
        save(managed.pipeline, tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    managed.check(picture)


@any_plan
def test_within_suspended_the_pipeline_is_saved_whole(
    lifetimes, manage, picture, tmp_path: Path
) -> None:
    managed = manage(lifetimes)
    with managed.residency.suspended():
        managed.pipeline.save_pretrained(tmp_path)
    saved = DiffusionPipeline.from_pretrained(str(tmp_path), dtype=torch.float32)
    assert torch.equal(draw(saved), picture)
    managed.check(picture)


@any_plan
def test_a_copy_is_refused_and_within_suspended_it_is_a_plain_pipeline(
    lifetimes, manage, picture
) -> None:
    managed = manage(lifetimes)
    for original in (managed.pipeline.transformer, managed.pipeline):
        with pytest.raises(StateError, match=r"copy it within residency\.suspended\(\)"):
            copy.deepcopy(original)
    with managed.residency.suspended():
        copied = copy.deepcopy(managed.pipeline)
    used = managed.card.usage().allocated_bytes
    assert torch.equal(draw(copied), picture)
    assert managed.card.usage().allocated_bytes == used
    copied.transformer.half()  # its own
    managed.check(picture)


# --- one module in several pipelines ---------------------------------------------------------
@any_plan
def test_one_set_of_parts_in_two_pipelines_draws_right_in_both(lifetimes, manage, picture) -> None:
    managed = manage(lifetimes)
    second = QwenImage21Pipeline.from_pipe(managed.pipeline)
    second.set_progress_bar_config(disable=True)
    assert second.transformer is managed.pipeline.transformer
    for _ in range(2):
        assert torch.equal(draw(second), picture)
        managed.check(picture)


@any_plan
def test_a_pipeline_in_another_dtype_over_the_same_parts_is_refused(
    lifetimes, manage, picture
) -> None:
    managed = manage(lifetimes)
    with pytest.raises(StateError, match=r"is managed and stays torch\.float32"):
        QwenImage21Pipeline.from_pipe(managed.pipeline, dtype=torch.float16)
    managed.check(picture)


@any_plan
def test_a_pipeline_rebuilt_after_detach_is_plain_and_can_be_attached_again(
    lifetimes, shared, picture
) -> None:
    first = Managed(shared, lifetimes)
    first.check(picture)
    first.residency.detach()
    rebuilt = QwenImage21Pipeline(**shared.components)
    rebuilt.set_progress_bar_config(disable=True)
    assert torch.equal(draw(rebuilt), picture)
    again = Managed(rebuilt, list(reversed(lifetimes)))
    again.check(picture)
    assert torch.equal(draw(shared), picture)  # the same parts, by the first pipeline
    again.residency.detach()
    assert torch.equal(draw(rebuilt), picture)
    assert first.card.ledger() == again.card.ledger() == {}


# --- other offloaders stacked on top ---------------------------------------------------------
def group_offload(pipeline: Any) -> None:
    pipeline.transformer.enable_group_offload(
        onload_device=CPU, offload_device=CPU, offload_type="leaf_level"
    )


def group_offload_text_encoder(pipeline: Any) -> None:
    apply_group_offloading(
        pipeline.text_encoder,
        onload_device=CPU,
        offload_device=CPU,
        offload_type="block_level",
        num_blocks_per_group=1,
    )


def layerwise_casting(pipeline: Any) -> None:
    pipeline.transformer.enable_layerwise_casting(
        storage_dtype=torch.bfloat16, compute_dtype=torch.float32
    )


def accelerate_offload(pipeline: Any) -> None:
    cpu_offload(pipeline.transformer, execution_device=CPU)


@pytest.mark.parametrize("lifetimes", [[P], [P, F, S]], ids=["all permanent", "mixed thirds"])
@pytest.mark.parametrize(
    "stack",
    [group_offload, group_offload_text_encoder, layerwise_casting, accelerate_offload],
    ids=lambda call: call.__name__,
)
def test_another_offloader_on_top_is_refused_at_once_or_at_the_next_run(stack, lifetimes) -> None:
    managed = Managed(load(), lifetimes)

    def stack_and_draw() -> None:
        stack(managed.pipeline)
        draw(managed.pipeline)

    with pytest.raises(StateError, match=r"already has|is managed|within residency\.suspended"):
        stack_and_draw()
    assert managed.card.num_copies_in_flight == 0
    managed.residency.detach()
    del managed.pipeline
    gc.collect()  # accelerate keeps what it found in the module
    assert managed.card.ledger() == {}
