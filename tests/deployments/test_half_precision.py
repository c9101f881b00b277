"""Guarantee: a float16 model draws what the plain float16 pipeline draws, managed or not.

SDXL upcasts its VAE in mid-request, Stable Diffusion 1.5 never does; both say ``force_upcast``.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AuraFlowPipeline,
    AutoencoderKL,
    DiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
)

from deployments.config import ModelConfig
from deployments.errors import JobCancelled
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.pipeline import LoadedPipeline, load_pipeline
from deployments.upcast import hold_upcast, rest
from offload import Residency, SimulatedCard
from tests.deployments.tiny import save_tiny_stable_diffusion
from tests.offload.nets import F, P, S, plan_for, tight
from tests.stock.recipes import SDXL

JOBS = [
    GenerateJob(request_id="a", prompt="a fox", width=64, height=64, steps=2, seed=3),
    GenerateJob(
        request_id="b",
        prompt="two hens",
        negative_prompt="blue",
        guidance_scale=5.0,
        width=96,
        height=64,
        steps=2,
        seed=4,
    ),
]
PLANS = {
    "all permanent": ([P], 2),
    "all forward": ([F], 2),
    "streamed, window of 2": ([S], 2),
    "streamed, window of 3": ([S], 3),
    "mixed thirds": ([P, F, S], 2),
}


@pytest.fixture(scope="module")
def xl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved in float32: what float16 rounds away matters to the picture."""
    folder = tmp_path_factory.mktemp("models") / "sdxl"
    pipeline = SDXL.make()
    pipeline.vae.register_to_config(force_upcast=True)
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="module")
def plain(xl_folder: Path) -> list[bytes]:
    return draw_plain(xl_folder)


@pytest.fixture(scope="module")
def xl(xl_folder: Path) -> LoadedPipeline:
    return load_half(xl_folder)


def load_half(folder: Path, **fields: Any) -> LoadedPipeline:
    return load_pipeline(ModelConfig(name="tiny", path=str(folder), dtype="float16", **fields))


def draw_plain(folder: Path) -> list[bytes]:
    """Drawn without Tenure: stock diffusers, stock call."""
    pipeline = DiffusionPipeline.from_pretrained(str(folder), dtype=torch.float16)
    pipeline.set_progress_bar_config(disable=True)
    pictures = []
    for job in JOBS:
        guidance = {} if job.guidance_scale is None else {"guidance_scale": job.guidance_scale}
        result = pipeline(
            prompt=job.prompt,
            negative_prompt=job.negative_prompt,
            width=job.width,
            height=job.height,
            num_inference_steps=job.steps,
            generator=torch.Generator().manual_seed(job.seeds[0]),
            **guidance,
        )
        pictures.append(encode_png(result.images[0]))
    return pictures


def draw(pipeline: LoadedPipeline) -> list[bytes]:
    images = [pipeline.generate(job, lambda step, of: None, lambda: False)[0] for job in JOBS]
    return [encode_png(image) for image in images]


def weights_dtype(module: torch.nn.Module) -> torch.dtype:
    (dtype,) = {weight.dtype for weight in module.parameters()}
    return dtype


# --- pictures --------------------------------------------------------------------------------
def test_a_pipeline_that_upcasts_draws_as_the_plain_one(
    xl: LoadedPipeline, plain: list[bytes]
) -> None:
    assert draw(xl) == plain
    assert plain[0] != plain[1]


@pytest.mark.parametrize(("lifetimes", "window"), PLANS.values(), ids=PLANS.keys())
def test_it_draws_the_same_under_every_plan(
    lifetimes, window: int, xl: LoadedPipeline, plain: list[bytes]
) -> None:
    plan = tight(plan_for(xl.components, lifetimes, window=window))
    card = SimulatedCard(memory_bytes=plan.peak_bytes, bytes_per_s=2e9)
    residency = Residency.attach(xl.components, card=card, plan=plan)
    for _ in range(3):
        with residency.request():
            assert draw(xl) == plain
        assert card.usage().allocated_bytes == plan.standing_bytes
    residency.detach()
    assert draw(xl) == plain


@pytest.mark.parametrize("lifetimes", [[P], [S]])
def test_a_pipeline_that_never_upcasts_keeps_its_vae_in_float16(tmp_path: Path, lifetimes) -> None:
    folder = save_tiny_stable_diffusion(tmp_path, force_upcast=True)
    plain = draw_plain(folder)
    loaded = load_half(folder)
    assert weights_dtype(loaded.components["vae"]) is torch.float16
    assert draw(loaded) == plain
    card = SimulatedCard(memory_bytes=1 << 30, bytes_per_s=2e9)
    residency = Residency.attach(
        loaded.components, card=card, plan=plan_for(loaded.components, lifetimes)
    )
    assert draw(loaded) == plain
    residency.detach()


@pytest.mark.parametrize("lifetimes", [[P], [F], [S]])
def test_a_picture_is_encoded_as_the_plain_pipeline_does(xl_folder: Path, lifetimes) -> None:
    """Image to image upcasts for the encoder too, and adds noise in float16 between the two."""
    parts = load_half(xl_folder).components
    plain = DiffusionPipeline.from_pretrained(str(xl_folder), dtype=torch.float16)
    expected = draw_over(plain, plain.components)
    residency = Residency.attach(
        parts,
        card=SimulatedCard(memory_bytes=1 << 30, bytes_per_s=2e9),
        plan=plan_for(parts, lifetimes),
    )
    assert torch.equal(draw_over(plain, parts), expected)
    residency.detach()


def draw_over(pipeline: Any, parts: dict[str, Any]) -> torch.Tensor:
    """One image-to-image call with these parts and the pipeline's tokenizers and scheduler."""
    given = {name: parts.get(name, part) for name, part in pipeline.components.items()}
    img2img = StableDiffusionXLImg2ImgPipeline(**given, add_watermarker=False)
    img2img.set_progress_bar_config(disable=True)
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    result = img2img(
        prompt="a fox",
        image=image,
        num_inference_steps=4,
        generator=torch.Generator().manual_seed(2),
        output_type="pt",
    )
    return result.images


# --- what is loaded --------------------------------------------------------------------------
def test_only_the_vae_is_held_in_float32_and_says_float16(xl: LoadedPipeline) -> None:
    parts = xl.components
    assert weights_dtype(parts["vae"]) is torch.float32
    assert parts["vae"].dtype == torch.float16
    assert all(weights_dtype(parts[name]) is torch.float16 for name in parts if name != "vae")
    assert not any(weight.requires_grad for weight in parts["vae"].parameters())


def test_its_weights_are_rounded_to_float16_first(xl: LoadedPipeline, xl_folder: Path) -> None:
    stored = AutoencoderKL.from_pretrained(xl_folder / "vae").state_dict()
    for name, weight in xl.components["vae"].state_dict().items():
        assert torch.equal(weight, stored[name].half().float())


def test_it_keeps_the_name_under_which_it_is_saved(xl: LoadedPipeline, tmp_path: Path) -> None:
    vae = xl.components["vae"]
    assert isinstance(vae, AutoencoderKL)
    vae.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["_class_name"] == "AutoencoderKL"


def test_the_classs_own_default_says_whether_a_vae_is_upcast(
    xl_folder: Path, tmp_path: Path
) -> None:
    config = copy_of(xl_folder, tmp_path) / "vae" / "config.json"
    settings = json.loads(config.read_text())
    del settings["force_upcast"]
    config.write_text(json.dumps(settings))
    assert weights_dtype(load_half(tmp_path / "copy").components["vae"]) is torch.float32


def test_a_vae_that_does_not_ask_for_it_stays_in_float16(xl_folder: Path, tmp_path: Path) -> None:
    config = copy_of(xl_folder, tmp_path) / "vae" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "force_upcast": False}))
    assert weights_dtype(load_half(tmp_path / "copy").components["vae"]) is torch.float16


def copy_of(folder: Path, parent: Path) -> Path:
    return Path(shutil.copytree(folder, parent / "copy"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_dtypes_are_left_alone(xl_folder: Path, dtype: str) -> None:
    model = ModelConfig(name="tiny", path=str(xl_folder), dtype=dtype)
    vae = load_pipeline(model).components["vae"]
    assert weights_dtype(vae) == vae.dtype == getattr(torch, dtype)
    assert type(vae) is AutoencoderKL


# --- moving in mid-request -------------------------------------------------------------------
def upcast_vae() -> AutoencoderKL:
    vae: AutoencoderKL = SDXL.make().vae.half()
    vae.register_to_config(force_upcast=True)
    hold_upcast(AuraFlowPipeline, [vae])
    return vae


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda vae: vae.to(torch.float32), torch.float32),
        (lambda vae: vae.to(dtype=torch.float32), torch.float32),
        (lambda vae: vae.to("cpu", torch.float32), torch.float32),
        (lambda vae: vae.to(device="cpu", dtype=torch.float32), torch.float32),
        (lambda vae: vae.float(), torch.float32),
        (lambda vae: vae.float().to(torch.float16), torch.float16),
        (lambda vae: vae.float().half(), torch.float16),
        (lambda vae: vae.to("cpu"), torch.float16),
    ],
)
def test_a_conversion_in_mid_request_moves_nothing_and_is_said(
    ask: Callable[[AutoencoderKL], AutoencoderKL], says: torch.dtype
) -> None:
    vae = upcast_vae()
    before = {name: weight.data_ptr() for name, weight in vae.named_parameters()}
    assert ask(vae) is vae
    assert vae.dtype is says
    assert {name: weight.data_ptr() for name, weight in vae.named_parameters()} == before
    assert weights_dtype(vae) is torch.float32
    rest([vae])
    assert vae.dtype is torch.float16


def test_another_dtype_converts_as_ever() -> None:
    assert weights_dtype(upcast_vae().to(torch.float64)) is torch.float64


def test_an_error_between_the_two_conversions_leaves_the_next_picture_right(
    xl: LoadedPipeline, plain: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain diffusers would find a VAE in float32, leave the latents in float16, and fail."""

    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError("in the decoder")

    with monkeypatch.context() as patch:
        patch.setattr(xl.components["vae"], "decode", fail)
        with pytest.raises(MemoryError):
            draw(xl)
    assert draw(xl) == plain


def test_a_cancelled_job_leaves_the_next_picture_unchanged(
    xl: LoadedPipeline, plain: list[bytes]
) -> None:
    seen: list[int] = []
    with pytest.raises(JobCancelled):
        xl.generate(JOBS[0], lambda step, of: seen.append(step), lambda: bool(seen))
    assert draw(xl) == plain
