"""Guarantee: activations counted on the meta device are those of a real request, within 20 %.

Real requests of the tiny pipeline, which has the classes of Qwen-Image-2.1, measured by the engine.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.architectures import find_architecture, read_architecture
from deployments.blueprint import build_modules
from deployments.config import AppConfig, ModelConfig
from deployments.estimates import with_estimates
from deployments.messages import GenerateJob
from deployments.pipeline import LoadedPipeline, load_pipeline
from deployments.surveys import survey_model
from offload import (
    ComponentFacts,
    LiveLedger,
    Residency,
    ResidencySpec,
    SimulatedCard,
    UnitFacts,
)
from scripts.activations import USUAL, Scene, count
from tests.deployments.tiny_pipelines import save_tiny_pipeline

PROMPT = "a red circle beside two green triangles " * 8
TILED = pytest.mark.parametrize("tiling", [False, True], ids=["whole", "tiled"])


# --- the method ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("models") / "tiny", torch.float32)


def model_of(folder: Path) -> ModelConfig:
    return ModelConfig(name="tiny", path=str(folder), dtype="float32")


@TILED
@pytest.mark.parametrize("side", [128, 320])
def test_counted_ahead_is_what_a_real_request_takes(folder: Path, side: int, tiling: bool) -> None:
    pipeline = load_pipeline(model_of(folder))
    modules = build_modules(model_of(folder), {}, read_architecture(folder))
    if tiling:
        for vae in (pipeline.components["vae"], modules["vae"]):
            vae.enable_tiling()
    job = GenerateJob(request_id="a", prompt=PROMPT, width=side, height=side, steps=2, seed=3)
    measured, num_tokens = measure(pipeline, job)
    counted = count(modules, Scene(width=side, height=side, num_tokens=num_tokens))
    assert set(counted) == set(measured) == {"text_encoder", "transformer", "vae"}
    for name, num_bytes in counted.items():
        assert num_bytes == pytest.approx(measured[name], rel=0.2), name


def measure(pipeline: LoadedPipeline, job: GenerateJob) -> tuple[dict[str, int], int]:
    """Component -> activations as the engine saw them, and the tokens that the encoder read."""
    lengths: list[int] = []
    pipeline.components["text_encoder"].register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    card = SimulatedCard(memory_bytes=1 << 30, bytes_per_s=1e9, clock="virtual")
    residency = Residency.attach(pipeline.components, card=card, spec=ResidencySpec())
    try:
        with residency.measuring(source="measured") as probe, residency.request():
            pipeline.generate(job, lambda step, of, _=None: None, lambda: False)
        found = probe.measured().components
        return {name: one.activation_bytes for name, one in found.items()}, lengths[0]
    finally:
        residency.detach()


# --- the shipped figures -------------------------------------------------------------------------
def facts(name: str = "vae", **known: Any) -> ComponentFacts:
    trunk = UnitFacts(name="trunk", list_name=None, num_bytes=1 << 20)
    return ComponentFacts(name=name, group=name, trunk=trunk, layers=(), **known)


def config_of(**args: Any) -> AppConfig:
    model = {"name": "Qwen/Qwen-Image-2.1", "component_dtypes": {"vae": "float32"}}
    return AppConfig.model_validate({"model": model | args.pop("model", {})} | args)


def estimated(config: AppConfig, known: ComponentFacts) -> ComponentFacts:
    (one,) = with_estimates([known], config)
    return one


def test_the_decode_that_was_shipped_counts_the_same_today() -> None:
    """The other figures take a minute: ``python -m scripts.activations``."""
    model = config_of().model
    vae = build_modules(model, {}, find_architecture(model).folder)["vae"]
    latents = torch.zeros(1, 64, 1, 64, 64, device="meta")
    with torch.inference_mode(), LiveLedger() as ledger:
        vae.decode(latents)
    cache_bytes = 32 * 2 * USUAL.num_tokens * 4096 * 2  # of 32 layers, a key and a value a token
    shipped = estimated(config_of(), facts()).activation_bytes
    assert shipped == pytest.approx(ledger.peak_bytes + cache_bytes, rel=0.001)


def test_a_setting_that_is_off_is_named_with_what_it_would_make_of_it() -> None:
    whole = estimated(config_of(), facts())
    tiled = estimated(config_of(components={"vae": {"tiling": True}}), facts())
    assert gib(whole.activation_bytes) == pytest.approx(12.25, abs=0.01)
    assert gib(tiled.activation_bytes) == pytest.approx(1.03, abs=0.01)
    assert whole.activation_with == (("tiling", tiled.activation_bytes),)
    assert tiled.activation_with == ()
    source = "estimated for 1024x1024 and a prompt of 512 tokens"
    assert whole.activation_source == tiled.activation_source == source


def test_half_as_wide_numbers_take_half_the_bytes() -> None:
    narrow = estimated(config_of(model={"component_dtypes": {}}), facts())
    assert 2 * narrow.activation_bytes == estimated(config_of(), facts()).activation_bytes


def test_an_estimate_never_replaces_a_figure() -> None:
    known = facts(activation_bytes=3, activation_source="measured at 128x128")
    assert estimated(config_of(), known) is known
    unnamed = facts(activation_bytes=3)
    assert estimated(config_of(), unnamed) is unnamed


def test_another_files_estimate_is_replaced_by_that_for_this_one() -> None:
    whole = estimated(config_of(), facts())
    config = config_of(components={"vae": {"tiling": True}})
    assert estimated(config, whole) == estimated(config, facts())


def test_what_nobody_counted_stays_unknown() -> None:
    assert estimated(config_of(), facts("image_encoder")) == facts("image_encoder")
    for name in ("flux.1-dev", "some/model"):  # shipped without activations, and not shipped
        assert estimated(config_of(model={"name": name}), facts()) == facts()


def test_planning_counts_activations_that_the_file_does_not_name() -> None:
    config = config_of(components={"vae": {"tiling": True}, "transformer": {"activation": "2GiB"}})
    found = {one.name: one for one in survey_model(config).facts}
    assert found["transformer"].activation_bytes == 2 << 30  # the file's own wins
    assert found["transformer"].activation_source == "the Serve file"
    assert gib(found["vae"].activation_bytes) == pytest.approx(1.03, abs=0.01)
    assert gib(found["text_encoder"].activation_bytes) == pytest.approx(0.36, abs=0.01)


def test_the_files_own_figure_leaves_no_word_of_settings_that_it_was_not_asked_about() -> None:
    config = config_of(components={"vae": {"activation": "2GiB"}})
    (vae,) = [one for one in survey_model(config).facts if one.name == "vae"]
    assert (vae.activation_bytes, vae.activation_with) == (2 << 30, ())


def gib(num_bytes: int) -> float:
    return num_bytes / (1 << 30)
