"""Before anything starts: a typo in a component and a broken model stop with one message."""

import shutil

import pytest

from deployments.config import AppConfig
from deployments.errors import ConfigError, ModelError
from deployments.model_check import check_model
from deployments.paths import ROOT
from offload import GROUPS

DEMO = ROOT / "deployments" / "demo" / "checkpoint"


def config(path=DEMO, **components) -> AppConfig:
    model = {"name": "demo", "path": str(path)}
    return AppConfig.model_validate({"model": model, "components": components})


def test_components_and_groups_of_the_pipeline_pass():
    check_model(config(text_encoder=0.8, transformer="all", vae="all"))
    check_model(config(dit="all", all="auto", image_encoder=1))


@pytest.mark.parametrize(
    ("typo", "near"), [("text_encodr", "text_encoder"), ("transfomer", "transformer")]
)
def test_a_typo_is_refused_with_the_valid_names(typo, near):
    with pytest.raises(ConfigError, match=rf"did you mean {near}\?") as caught:
        check_model(config(**{typo: "all"}))
    for name in ("text_encoder", "transformer", "vae", *GROUPS):
        assert name in str(caught.value)


def test_a_part_without_weights_is_no_component():
    with pytest.raises(ConfigError, match="scheduler"):
        check_model(config(scheduler="all"))


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        check_model(config(tmp_path / "nothing"))


def test_a_half_downloaded_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="vae"):
        check_model(config(folder))
