"""The loaded pipeline draws exactly what diffusers alone draws, and refuses what it cannot draw."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from deployments.config import ComponentConfig, ModelConfig
from deployments.errors import JobCancelled, JobError, ModelError
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.pipeline import LoadedPipeline, load_pipeline
from tests.deployments.tiny import save_tiny_stable_diffusion
from tests.deployments.tiny_pipelines import save_tiny_pipeline

SIZE = 64
STEPS = 3


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("models") / "qwen", torch.float32)


@pytest.fixture(scope="module")
def sd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "sd"
    return save_tiny_stable_diffusion(folder, force_upcast=True)


@pytest.fixture(scope="module")
def qwen(qwen_folder: Path) -> LoadedPipeline:
    return load_pipeline(_model(qwen_folder))


@pytest.fixture(scope="module")
def sd(sd_folder: Path) -> LoadedPipeline:
    return load_pipeline(_model(sd_folder))


def test_parts_with_weights_are_named_in_the_pipelines_order(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    assert qwen.name == "QwenImage21Pipeline"
    assert list(qwen.components) == ["vae", "text_encoder", "transformer"]
    assert list(sd.components) == ["vae", "text_encoder", "unet"]
    for part in (*qwen.components.values(), *sd.components.values()):
        assert not part.training
        for weight in part.parameters():
            assert weight.device.type == "cpu"
            assert not weight.requires_grad


@pytest.mark.parametrize("kind", ["qwen", "sd"])
def test_pictures_equal_those_of_diffusers_alone(
    kind: str, qwen_folder: Path, sd_folder: Path, qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    folder, loaded = {"qwen": (qwen_folder, qwen), "sd": (sd_folder, sd)}[kind]
    plain = DiffusionPipeline.from_pretrained(str(folder), dtype=torch.float32)
    plain.set_progress_bar_config(disable=True)
    expected = plain(
        prompt="a red circle",
        width=SIZE,
        height=SIZE,
        num_inference_steps=STEPS,
        generator=torch.Generator("cpu").manual_seed(7),
    ).images[0]
    assert _draw(loaded, _job(seed=7)) == [encode_png(expected)]


def test_image_i_of_a_job_is_the_picture_of_seed_plus_i(qwen: LoadedPipeline) -> None:
    both = _draw(qwen, _job(seed=7, images=2))
    assert both == _draw(qwen, _job(seed=7)) + _draw(qwen, _job(seed=8))
    assert both[0] != both[1]


def test_steps_are_reported_over_all_images(qwen: LoadedPipeline) -> None:
    seen: list[tuple[int, int]] = []
    job = _job(images=2)
    qwen.generate(job, lambda step, of: seen.append((step, of)), _never)
    assert seen == [(step, 2 * STEPS) for step in range(1, 2 * STEPS + 1)]


def test_a_cancelled_job_stops_within_one_step(qwen: LoadedPipeline) -> None:
    seen: list[int] = []
    with pytest.raises(JobCancelled, match="request r1 was cancelled"):
        qwen.generate(_job(steps=20), lambda step, of: seen.append(step), lambda: len(seen) == 2)
    assert seen == [1, 2]


def test_a_job_that_is_cancelled_before_it_starts_computes_nothing(qwen: LoadedPipeline) -> None:
    with pytest.raises(JobCancelled):
        qwen.generate(_job(), _fail, lambda: True)


@pytest.mark.parametrize("kind", ["qwen", "sd"])
def test_a_cancelled_job_leaves_the_next_picture_unchanged(
    kind: str, qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    loaded = {"qwen": qwen, "sd": sd}[kind]
    before = _draw(loaded, _job(seed=3))
    seen: list[int] = []
    with pytest.raises(JobCancelled):
        loaded.generate(_job(steps=9), lambda step, of: seen.append(step), lambda: bool(seen))
    assert _draw(loaded, _job(seed=3)) == before


def test_a_field_that_the_pipeline_lacks_is_refused_by_name(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    with pytest.raises(JobError, match="QwenImage21Pipeline has no guidance_scale; leave it out"):
        qwen.generate(_job(guidance_scale=4.0), _fail, _never)
    with pytest.raises(JobError, match="StableDiffusionPipeline has no true_cfg_scale"):
        sd.check(_job(true_cfg_scale=4.0))


def test_guidance_changes_the_picture_where_the_pipeline_has_it(sd: LoadedPipeline) -> None:
    assert _draw(sd, _job(guidance_scale=1.0)) != _draw(sd, _job(guidance_scale=9.0))


def test_a_size_that_would_be_rounded_is_refused_with_the_nearest(qwen: LoadedPipeline) -> None:
    assert qwen.size_multiple == 32
    with pytest.raises(JobError, match=r"height is 100; .* multiples of 32, such as 96"):
        qwen.check(_job(height=100))
    with pytest.raises(JobError, match=r"width is 8; .* such as 32"):
        qwen.check(_job(width=8))


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({}, ()),
        ({"true_cfg_scale": 1.0}, ()),
        ({"true_cfg_scale": 4.0, "negative_prompt": "blue"}, ()),
        (
            {"negative_prompt": "blue"},
            ("negative_prompt has no effect: true_cfg_scale is 1.0, give one above 1",),
        ),
        (
            {"true_cfg_scale": 4.0},
            ("true_cfg_scale 4.0 has no effect without a negative_prompt",),
        ),
    ],
)
def test_what_has_no_effect_is_said(
    qwen: LoadedPipeline, fields: dict[str, Any], warning: tuple[str, ...]
) -> None:
    assert qwen.warnings(_job(**fields)) == warning


def test_a_pipeline_without_true_cfg_warns_of_nothing(sd: LoadedPipeline) -> None:
    assert sd.warnings(_job(negative_prompt="blue")) == ()


def test_the_negative_prompt_reaches_the_pipeline(qwen: LoadedPipeline) -> None:
    guided = _draw(qwen, _job(true_cfg_scale=4.0, negative_prompt="blue"))
    assert guided != _draw(qwen, _job())


def test_a_picture_to_edit_reaches_the_pipeline_as_diffusers_alone_reads_it(
    qwen_folder: Path, qwen: LoadedPipeline
) -> None:
    picture = Image.linear_gradient("L").resize((96, 48)).convert("RGB")
    plain = DiffusionPipeline.from_pretrained(str(qwen_folder), dtype=torch.float32)
    plain.set_progress_bar_config(disable=True)
    expected = plain(
        prompt="a red circle",
        image=picture,
        output_resolution=SIZE,
        width=SIZE,
        height=SIZE,
        num_inference_steps=STEPS,
        generator=torch.Generator("cpu").manual_seed(7),
    ).images[0]
    inputs = (encode_png(picture),)
    assert _draw(qwen, _job(seed=7, inputs=inputs)) == [encode_png(expected)]
    assert _draw(qwen, _job(seed=7)) != [encode_png(expected)]
    assert _draw(qwen, _job(seed=7, inputs=inputs * 2)) != [encode_png(expected)]


def test_a_picture_or_a_mask_that_the_pipeline_cannot_take_is_refused(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    inputs = (encode_png(Image.new("RGB", (SIZE, SIZE))),)
    with pytest.raises(JobError, match="StableDiffusionPipeline draws from a prompt alone"):
        sd.check(_job(inputs=inputs))
    with pytest.raises(JobError, match="QwenImage21Pipeline takes no mask"):
        qwen.check(_job(inputs=inputs, mask=inputs[0]))


def test_a_pipeline_that_draws_opaque_pictures_says_so(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    _draw(sd, _job())
    with pytest.raises(JobError, match="StableDiffusionPipeline draws opaque pictures"):
        sd.check(_job(background="transparent"))
    _draw(qwen, _job(background="transparent"))


def test_previews_show_each_image_on_its_way_and_change_no_picture(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    for loaded in (qwen, sd):
        plain = _draw(loaded, _job(images=2, steps=4))  # and there is something to project with
        seen: list[tuple[int, Image.Image]] = []

        def on_step(step: int, of: int, preview: Any = None, seen: Any = seen) -> None:
            seen.extend([(step, preview)] if preview else [])

        job = _job(images=2, steps=4, partial_images=3)
        images = loaded.generate(job, on_step, _never)
        assert [encode_png(image) for image in images] == plain
        assert [step for step, _ in seen] == [1, 2, 3, 5, 6, 7]
        assert len({preview.tobytes() for _, preview in seen}) == len(seen)


def test_tokens_are_counted_by_the_pipelines_own_means(
    qwen: LoadedPipeline, sd: LoadedPipeline
) -> None:
    inputs = (encode_png(Image.new("RGB", (SIZE, SIZE // 2))),)
    for loaded, side in ((qwen, 16), (sd, 8)):  # pixels that a position of the latents stands for
        _draw(loaded, _job())
        counted = loaded.tokens(_job(images=2, inputs=inputs))
        positions = (SIZE // side) ** 2
        assert (counted["image"], counted["output"]) == (positions // 2, positions * 2)
        assert counted["text"] > 0


def test_dtypes_are_set_by_component(qwen_folder: Path) -> None:
    model = _model(qwen_folder, dtype="bfloat16", component_dtypes={"vae": "float32"})
    dtypes = {name: _dtype(part) for name, part in load_pipeline(model).components.items()}
    assert dtypes == {
        "vae": torch.float32,
        "text_encoder": torch.bfloat16,
        "transformer": torch.bfloat16,
    }


def test_a_dtype_for_an_unknown_component_is_refused(qwen_folder: Path) -> None:
    model = _model(qwen_folder, component_dtypes={"vea": "float32"})
    with pytest.raises(ModelError, match=r"component_dtypes names vea; .* has .*transformer, vae"):
        load_pipeline(model)


def test_tiling_is_switched_on_where_it_is_asked_for(qwen_folder: Path) -> None:
    tiled = load_pipeline(_model(qwen_folder), {"vae": ComponentConfig(tiling=True)})
    assert tiled.components["vae"].use_tiling
    whole = load_pipeline(_model(qwen_folder), {"vae": ComponentConfig()})
    assert not whole.components["vae"].use_tiling


def test_tiling_of_a_part_without_it_is_refused(qwen_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"components.transformer.tiling is true, but"):
        load_pipeline(_model(qwen_folder), {"transformer": ComponentConfig(tiling=True)})


def test_a_model_that_may_be_downloaded_is_asked_of_the_hub_as_safetensors(
    qwen_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(qwen_folder)

    monkeypatch.setattr(DiffusionPipeline, "download", download)
    model = ModelConfig(name="some/model", dtype="float32", revision="v1", local_files_only=False)
    assert load_pipeline(model).name == "QwenImage21Pipeline"
    options = {"revision": "v1", "use_safetensors": True, "trust_remote_code": False}
    assert asked == [("some/model", options)]


def test_a_folder_that_is_not_whole_is_refused_before_loading(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model_index\.json"):
        load_pipeline(_model(tmp_path))


def test_loading_and_drawing_open_no_connection_and_print_no_bar(
    qwen_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError(f"a connection was tried: {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    _draw(load_pipeline(_model(qwen_folder)), _job())
    printed = capfd.readouterr()
    assert "%|" not in printed.err + printed.out


def test_equal_pixels_make_equal_png_bytes_whatever_the_picture_carries(
    qwen: LoadedPipeline,
) -> None:
    image = qwen.generate(_job(), _ignore, _never)[0]
    twin = image.copy()
    twin.info["dpi"] = (300, 300)
    assert encode_png(twin) == encode_png(image)
    assert encode_png(image)[:8] == b"\x89PNG\r\n\x1a\n"


def _model(folder: Path, **fields: Any) -> ModelConfig:
    return ModelConfig(**{"name": "tiny", "path": str(folder), "dtype": "float32", **fields})


def _job(**fields: Any) -> GenerateJob:
    plain = {"prompt": "a red circle", "width": SIZE, "height": SIZE, "steps": STEPS, "seed": 1}
    return GenerateJob(request_id="r1", **{**plain, **fields})


def _draw(loaded: LoadedPipeline, job: GenerateJob) -> list[bytes]:
    return [encode_png(image) for image in loaded.generate(job, _ignore, _never)]


def _dtype(part: torch.nn.Module) -> torch.dtype:
    dtypes = {weight.dtype for weight in part.parameters()}
    assert len(dtypes) == 1
    return dtypes.pop()


def _never() -> bool:
    return False


def _ignore(step: int, of: int) -> None:
    """For those who do not watch the steps."""


_fail: Callable[..., None] = lambda step, of: pytest.fail("a step was computed")  # noqa: E731
