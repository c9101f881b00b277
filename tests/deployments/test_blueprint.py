"""Modules built from configuration files have the units and bytes of the loaded ones, exactly."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

from deployments.architectures import read_architecture
from deployments.blueprint import build_modules
from deployments.config import ComponentConfig, ModelConfig
from deployments.errors import ModelError
from deployments.paths import resolve
from deployments.pipeline import load_pipeline
from deployments.upcast import hold_upcast
from offload import ComponentFacts, survey_component
from tests.deployments.tiny import save_tiny_stable_diffusion
from tests.stock.recipes import RECIPES, Recipe, modules_of

DEMO = Path(resolve("deployments/demo/checkpoint"))


def facts_of(modules: Mapping[str, nn.Module]) -> list[ComponentFacts]:
    return [survey_component(module, name) for name, module in modules.items()]


def planned(folder: Path, dtype: str, **model: Any) -> list[ComponentFacts]:
    config = ModelConfig(name="m", path=str(folder), dtype=dtype, **model)
    return facts_of(build_modules(config, {}, read_architecture(folder)))


def without_weights(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    assert not list(copy.rglob("*.safetensors"))
    return copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_demo_without_its_weights_is_what_loading_it_gives(dtype: str, tmp_path: Path) -> None:
    mixed: Any = {"component_dtypes": {"vae": "float32"}}
    loaded = load_pipeline(ModelConfig(name="m", path=str(DEMO), dtype=dtype, **mixed))
    bare = without_weights(DEMO, tmp_path / "bare")
    assert planned(bare, dtype, **mixed) == facts_of(loaded.components)


@pytest.mark.parametrize("force_upcast", [False, True])
def test_a_float16_vae_that_is_upcast_on_load_is_counted_in_float32(
    force_upcast: bool, tmp_path: Path
) -> None:
    folder = save_tiny_stable_diffusion(tmp_path / "sd", force_upcast=force_upcast)
    loaded = load_pipeline(ModelConfig(name="m", path=str(folder), dtype="float16"))
    assert planned(folder, "float16") == facts_of(loaded.components)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_stock_pipelines_are_what_loading_their_parts_gives(
    recipe: Recipe, dtype: str, tmp_path: Path
) -> None:
    """Layers that stay in float32, tied weights, buffers made in a constructor, the order."""
    pipeline = recipe.make()
    index: dict[str, Any] = {"_class_name": type(pipeline).__name__}
    loaded = {}
    for name, part in modules_of(pipeline).items():
        part.save_pretrained(tmp_path / name)
        kind: Any = type(part)
        index[name] = [kind.__module__.partition(".")[0], kind.__name__]
        loaded[name] = kind.from_pretrained(str(tmp_path / name), dtype=getattr(torch, dtype))
    (tmp_path / "model_index.json").write_text(json.dumps(index, sort_keys=True))
    hold_upcast(type(pipeline), loaded.values())
    assert planned(tmp_path, dtype) == facts_of(loaded)


def test_a_buffer_that_no_file_holds_has_the_dtype_of_loading(tmp_path: Path) -> None:
    """Its constructor makes this one's mask, in whatever dtype is the default then."""
    prior = diffusers.PriorTransformer(
        num_attention_heads=2, attention_head_dim=4, num_layers=2, embedding_dim=8
    )
    prior.save_pretrained(tmp_path / "prior")
    parts = {"prior": ["diffusers", "PriorTransformer"]}
    index = {"_class_name": "KandinskyPriorPipeline", **parts}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    loaded = type(prior).from_pretrained(str(tmp_path / "prior"), dtype=torch.float16)
    (facts,) = planned(tmp_path, "float16")
    assert facts == survey_component(loaded, "prior")
    assert facts.buffer_bytes >= loaded.causal_attention_mask.numel() * 2


def test_nothing_that_is_built_takes_memory() -> None:
    model = ModelConfig(name="m", path=str(DEMO))
    modules = build_modules(model, {}, read_architecture(DEMO))
    tensors = [t for m in modules.values() for t in (*m.parameters(), *m.buffers())]
    assert len(tensors) > 100
    assert all(tensor.is_meta for tensor in tensors)
    assert torch.get_default_dtype() is torch.float32


def _edit(folder: Path, file: str, **fields: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        (
            "model_index.json",
            {"_class_name": "NoPipeline"},
            "pipeline is a NoPipeline of diffusers",
        ),
        ("model_index.json", {"vae": ["diffusers", "NoVAE"]}, "vae is a NoVAE of diffusers, which"),
        ("model_index.json", {"vae": ["os", "path"]}, "path of diffusers.pipelines.os, which"),
        ("model_index.json", {"vae": ["../x", "A"]}, "vae comes from '../x', which is no part"),
        ("model_index.json", {"vae": ["diffusers", "pipelines"]}, "pipelines.*, which is no class"),
        ("vae/config.json", {"quantization_config": {"a": 1}}, "vae is quantised, .* under /fleet"),
        ("vae/config.json", {"dim_mult": []}, r"vae \(Auto.*\) cannot be built from .*config.json"),
        ("text_encoder/config.json", {"text_config": 3}, "text_encoder .* cannot be built from"),
    ],
)
def test_files_that_cannot_be_built_are_refused_by_component(
    file: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = without_weights(DEMO, tmp_path / "bare")
    _edit(folder, file, **fields)
    with pytest.raises(ModelError, match=message):
        planned(folder, "float32")


def test_a_part_without_a_config_is_refused(tmp_path: Path) -> None:
    folder = without_weights(DEMO, tmp_path / "bare")
    (folder / "vae" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"vae \(AutoencoderKLQwenImage21\) has no config.json"):
        planned(folder, "float32")


def test_settings_and_dtypes_for_parts_that_have_none_are_refused_as_on_load() -> None:
    model = ModelConfig(name="m", path=str(DEMO))
    tiled = {"transformer": ComponentConfig(tiling=True)}
    with pytest.raises(ModelError, match=r"components\.transformer\.tiling is true, but"):
        build_modules(model, tiled, read_architecture(DEMO))
    with pytest.raises(ModelError, match="component_dtypes names unet; QwenImage21Pipeline has"):
        planned(DEMO, "float32", component_dtypes={"unet": "float16"})
