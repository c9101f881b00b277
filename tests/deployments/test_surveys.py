"""A survey needs no weights, is the same from JSON, and says where it may not be trusted."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.config import AppConfig
from deployments.errors import ConfigError
from deployments.paths import ROOT
from deployments.surveys import Survey, read_config, read_survey, survey_model
from tests.deployments.serve_files import write_serve_file
from tests.deployments.tiny_pipelines import save_tiny_pipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("models") / "tiny", torch.float32)


def config_of(folder: Path | str, **args: Any) -> AppConfig:
    model = {"name": "tiny", "path": str(folder), "dtype": "float32"}
    return AppConfig.model_validate({"model": model, "defaults": {"steps": 7}} | args)


def written(survey: Survey, file: Path, **fields: Any) -> str:
    file.write_text(json.dumps(survey.to_dict() | fields))
    return str(file)


def test_a_survey_comes_back_from_json(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, components={"vae": {"activation": "3MiB"}})
    survey = survey_model(config)
    assert read_survey(written(survey, tmp_path / "facts.json"), config) == survey
    assert survey.warnings == ()
    known = {one.name: (one.passes, one.activation_bytes) for one in survey.facts}
    assert known == {"vae": (1, 3 << 20), "text_encoder": (1, 0), "transformer": (7, 0)}
    assert [one.activation_source for one in survey.facts] == ["the Serve file", "", ""]


def test_what_the_serve_file_knows_holds_for_facts_from_a_file(
    folder: Path, tmp_path: Path
) -> None:
    path = written(survey_model(config_of(folder)), tmp_path / "facts.json")
    config = config_of(folder, defaults={"steps": 3}, components={"vae": {"activation": "3MiB"}})
    assert read_survey(path, config) == survey_model(config)


@pytest.mark.parametrize("weights", ["none", "half", "other"])
def test_weights_decide_nothing_and_are_compared_by_their_headers(
    weights: str, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = copy / "vae" / "diffusion_pytorch_model.safetensors"
    if weights == "none":
        file.unlink()
    elif weights == "half":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        shutil.copy(copy / "transformer" / file.name, file)
    survey = survey_model(config_of(copy))
    assert survey.facts == survey_model(config_of(folder)).facts
    said = {"none": [], "half": ["not whole"], "other": ["vae: the checkpoint holds"]}[weights]
    assert len(survey.warnings) == len(said)
    assert all(words in line for words, line in zip(said, survey.warnings, strict=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"more": 1}, r"is no survey \(model, components, warnings\); write one with `tenure surv"),
        ({"components": [{"name": "vae"}]}, r"component 0 \(vae\) lacks group, trunk, layers"),
        ({"components": 3}, "the facts are 3; give a list"),
        ({"warnings": "none"}, "warnings are 'none'; give a list of lines"),
    ],
)
def test_a_file_that_is_no_survey_is_refused(
    fields: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    config = config_of(folder)
    path = written(survey_model(config), tmp_path / "facts.json", **fields)
    with pytest.raises(ConfigError, match=message):
        read_survey(path, config)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_other_text_is_refused(text: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"--facts: .*facts\.json .*; write one with"):
        read_survey(str(file), config_of(folder))
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        read_survey(str(tmp_path / "absent.json"), config_of(folder))


def test_a_survey_of_another_model_is_taken_with_a_warning(folder: Path, tmp_path: Path) -> None:
    path = written(survey_model(config_of(folder)), tmp_path / "facts.json", model="other")
    (warning,) = read_survey(path, config_of(folder)).warnings
    assert warning == f"{path} is a survey of other, not of tiny"


# --- what a command may name -------------------------------------------------------------------
def test_a_serve_file_a_folder_an_architecture_and_a_hub_name_can_be_named(
    folder: Path, tmp_path: Path
) -> None:
    file = write_serve_file(tmp_path / "file.yaml", folder)
    assert read_config(str(file)).model.path == str(folder)
    assert read_config(str(folder)).model.name == str(folder)
    demo = read_config("deployments/demo/checkpoint").model
    assert Path(demo.source).is_dir()
    assert read_config("some/model").model.name == "some/model"
    assert read_config("flux.1-dev").components == {}  # no Serve file of that name
    served = read_config("configs/qwen-image-2.1.yaml")
    assert read_config("qwen-image-2.1") == served
    assert served.components["vae"].tiling


def test_any_other_name_is_refused_with_what_could_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pictures is neither a Serve file .* flux\.1-dev, qwen"):
        read_config("pictures")


def test_planning_from_json_imports_no_torch(folder: Path, tmp_path: Path) -> None:
    serve = write_serve_file(tmp_path / "file.yaml", folder)
    facts = written(survey_model(read_config(str(serve))), tmp_path / "facts.json")
    code = (
        "import sys\n"
        "from deployments.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    for card in (["--card", "small"], ["--card", "rtx4090"], ["--all-cards"]):
        command = [sys.executable, "-c", code, "plan", str(serve), "--facts", facts, *card]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
