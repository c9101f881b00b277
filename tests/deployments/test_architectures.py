"""The models that come as configuration files have the sizes of the real ones, and are found."""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deployments.architectures import find_architecture, shipped_architecture, shipped_names
from deployments.config import AppConfig, ModelConfig
from deployments.errors import ModelError
from deployments.paths import ROOT, resolve
from deployments.serve_file import read_serve_file
from deployments.surveys import read_config, survey_model
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    Lifetime,
    ResidencyPlan,
    ResidencySpec,
    plan_residency,
)

GIB = 1 << 30
FOLDER = ROOT / "configs" / "architectures"


@cache
def facts_of(name: str) -> dict[str, ComponentFacts]:
    return {one.name: one for one in survey_model(read_config(name)).facts}


def gib(num_bytes: int) -> float:
    return num_bytes / GIB


# --- Qwen-Image-2.1, the case that Tenure was made for ---------------------------------------
def test_qwen_image_has_the_bytes_of_the_real_model() -> None:
    facts = facts_of("qwen-image-2.1")
    assert gib(facts["transformer"].weight_bytes) == pytest.approx(13.25, abs=0.005)
    assert facts["transformer"].lists == {"transformer_blocks": 32}
    assert gib(facts["vae"].weight_bytes) == pytest.approx(1.26, abs=0.005)  # in float32
    encoder = facts["text_encoder"]
    assert list(encoder.lists.values()) == [27, 3, 36]  # vision, mergers, text
    assert gib(encoder.trunk.num_bytes) == pytest.approx(2.40, abs=0.005)
    head = 151936 * 4096 * 2  # untied: once more as an embedding
    assert gib(head) == pytest.approx(1.16, abs=0.005)
    assert encoder.trunk.num_bytes > 2 * head


def planned(wish: ComponentSpec, budget_bytes: int) -> ResidencyPlan:
    spec = ResidencySpec(components={"text_encoder": wish}, when_it_does_not_fit="refuse")
    budget = Budget(num_bytes=budget_bytes, copy_bytes_per_s=25e9)
    return plan_residency(spec, [facts_of("qwen-image-2.1")["text_encoder"]], budget)


def test_four_fifths_of_its_text_encoder_are_53_layers_of_11_196_gib() -> None:
    wish = ComponentSpec(resident_layers=0.8, lifetime="permanent")
    encoder = planned(wish, 40 * GIB)["text_encoder"]
    resident = [layer for layer in encoder.layers if layer.lifetime is not Lifetime.STREAMED]
    assert (len(resident), len(encoder.layers)) == (53, 66)
    assert gib(sum(layer.num_bytes for layer in resident)) == pytest.approx(11.196, abs=0.0005)


# --- the others --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "component", "num_parameters"),
    [  # in billions, as their makers count them
        ("flux.1-dev", "transformer", 11.90),
        ("flux.1-dev", "text_encoder_2", 4.76),
        ("flux.1-dev", "text_encoder", 0.123),
        ("flux.1-dev", "vae", 0.0838),
        ("wan2.1-t2v-14b", "transformer", 14.3),
        ("wan2.1-t2v-14b", "text_encoder", 5.68),
        ("wan2.1-t2v-14b", "vae", 0.127),
    ],
)
def test_other_models_have_the_parameters_of_the_real_ones(
    model: str, component: str, num_parameters: float
) -> None:
    """In bfloat16: two bytes each, but for a few that stay in float32."""
    found = facts_of(model)[component].weight_bytes / 2
    assert found == pytest.approx(num_parameters * 1e9, rel=0.005)


def test_wan_2_2_has_two_transformers_of_the_shape_of_wan_2_1() -> None:
    both = facts_of("wan2.2-t2v-a14b")
    one = facts_of("wan2.1-t2v-14b")
    assert both["transformer"] == one["transformer"]
    assert both["transformer_2"].layers == one["transformer"].layers


def test_every_folder_says_where_its_figures_come_from() -> None:
    rows = (FOLDER / "README.md").read_text().splitlines()
    named = {found[1] for row in rows if (found := re.match(r"\| `([\w.-]+)` \|", row))}
    assert named == set(shipped_names()) == {path.name for path in FOLDER.iterdir()} - {"README.md"}


def test_nothing_but_configuration_is_shipped() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert names == {"README.md", "config.json", "model_index.json", "activations.json"}
    assert all(path.stat().st_size < 8 << 10 for path in files)


# --- found -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("qwen-image-2.1", "qwen-image-2.1"),
        ("Qwen/Qwen-Image-2.1", "qwen-image-2.1"),
        ("black-forest-labs/FLUX.1-dev", "flux.1-dev"),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan2.2-t2v-a14b"),
    ],
)
def test_an_architecture_is_found_by_a_models_name(name: str, folder: str) -> None:
    assert shipped_architecture(name) == FOLDER / folder


@pytest.mark.parametrize("name", ["", "/", "..", "README.md", "qwen-image-2.1/vae", "flux"])
def test_other_names_find_none(name: str) -> None:
    assert shipped_architecture(name) is None


@pytest.mark.parametrize(
    "model",
    [
        {"name": "Qwen/Qwen-Image-2.1"},  # not in the hub's local cache
        {"name": "Qwen/Qwen-Image-2.1", "path": "/there/on/the/cluster"},
        {"name": "pictures", "path": "Qwen/Qwen-Image-2.1"},
        {"name": "Qwen/Qwen-Image-2.1", "local_files_only": False},
    ],
)
def test_a_model_that_is_not_here_is_planned_from_what_is_shipped_and_that_is_said(
    model: dict[str, Any],
) -> None:
    found = find_architecture(ModelConfig(**model))
    assert found.folder.path == FOLDER / "qwen-image-2.1"
    source = model.get("path") or model["name"]
    assert found.notice == (
        f"{source} is not on this machine: planned from the architecture of qwen-image-2.1 that "
        "comes with Tenure"
    )


def test_a_models_own_files_win(tmp_path: Path) -> None:
    own = tmp_path / "flux.1-dev"
    shutil.copytree(FOLDER / "qwen-image-2.1", own)
    found = find_architecture(ModelConfig(name="flux.1-dev", path=str(own)))
    assert (found.folder.path, found.notice) == (own, "")
    assert set(found.folder.components) == {"text_encoder", "transformer", "vae"}


def test_a_model_that_nobody_knows_is_refused_with_what_is_known() -> None:
    with pytest.raises(ModelError, match=r"some/model is .* \(flux\.1-dev, qwen-.* --facts"):
        find_architecture(ModelConfig(name="some/model"))


def test_own_files_that_are_broken_are_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model_index\.json"):
        find_architecture(ModelConfig(name="qwen-image-2.1", path=str(tmp_path)))


def test_one_that_is_asked_for_by_its_own_name_needs_no_notice() -> None:
    assert find_architecture(ModelConfig(name="flux.1-dev")).notice == ""


def test_parts_that_hold_no_weights_are_left_out() -> None:
    """The demo has a processor and a scheduler too."""
    found = find_architecture(ModelConfig(name="demo", path="deployments/demo/checkpoint"))
    assert set(found.folder.components) == {"text_encoder", "transformer", "vae"}


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_serve_file_can_be_planned(file: Path) -> None:
    config: AppConfig = read_serve_file(resolve(str(file))).config
    assert {one.name for one in survey_model(config).facts} == set(config.components)
