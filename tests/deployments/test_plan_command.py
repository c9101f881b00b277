"""``tenure survey`` and ``tenure plan``: a decision is shown with neither a card nor a weight."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from deployments.catalogue import CATALOGUE
from deployments.cli import main
from deployments.config import ModelConfig
from deployments.pipeline import LoadedPipeline, load_pipeline
from offload import Residency, ResidencySpec, SimulatedCard
from tests.deployments.serve_files import write_serve_file
from tests.deployments.tiny_pipelines import save_tiny_pipeline

MIB = 1 << 20
WISH: dict[str, Any] = {"text_encoder": 0.8, "transformer": "all", "vae": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("models") / "tiny", torch.float32)


@pytest.fixture(scope="module")
def config(folder: Path) -> str:
    return str(write_serve_file(folder.parent / "file.yaml", folder, components=WISH))


# --- plan ------------------------------------------------------------------------------------
def test_plan_shows_every_component_and_exits_with_0_where_the_wish_fits(config: str) -> None:
    result = _run("plan", config)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("large, 64.0 MiB free")
    for component in WISH:
        row = re.search(rf"^{component} +(\d+)/(\d+) +permanent ", result.stdout, re.MULTILINE)
        assert row is not None
        assert re.search(rf"^{component}: .+\.$", result.stdout, re.MULTILINE)  # why


def test_plan_exits_with_1_where_the_wish_is_shrunk(config: str) -> None:
    result = _run("plan", config, "--card", "4MiB")
    assert result.exit_code == 1
    assert "warning:" in result.stdout


def test_plan_exits_with_1_where_nothing_fits(config: str) -> None:
    result = _run("plan", config, "--card", "64KiB")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Error: " in result.stderr


def test_plan_as_json_is_what_a_replica_decides(folder: Path, config: str) -> None:
    found = json.loads(_run("plan", config, "--card", "small", "--json").stdout)
    card = SimulatedCard(name="small", memory_bytes=16 * MIB, used_bytes=MIB, bytes_per_s=1e9)
    residency = Residency.attach(
        _load(folder).components, card=card, spec=ResidencySpec(components=WISH)
    )
    decided = [report.to_dict() for report in residency.snapshot().components.values()]
    for planned, held in zip(found["components"], json.loads(json.dumps(decided)), strict=True):
        # Measured on the card, it counts the buffers too.
        assert held.pop("on_card_bytes") >= planned.pop("on_card_bytes")
        assert held == planned
    assert found["predicted"]["peak_bytes"] == residency.plan.peak_bytes <= 15 * MIB
    assert set(found["predicted"]) == {"request_s", "h2d_bytes", "peak_bytes"}
    assert found["card"] == {
        "name": "small",
        "memory_bytes": 16 * MIB,
        "free_bytes": 15 * MIB,
        "reserve_bytes": 0,
        "copy_bytes_per_s": 1e9,
        "simulated": True,
    }
    assert found["wish_fits"] is True
    residency.detach()


def test_plan_needs_no_weights(folder: Path, config: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    file = write_serve_file(tmp_path / "file.yaml", bare, components=WISH)
    assert _plan(str(file)) == _plan(config)


def test_plan_from_a_survey_is_the_plan_from_the_models_files(config: str, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(_run("survey", config, "--json").stdout)
    assert _plan(config, "--facts", str(facts)) == _plan(config)


def test_plan_takes_a_card_by_its_name(config: str) -> None:
    card = _plan(config, "--card", "rtx4090")["card"]
    assert (card["name"], card["free_bytes"]) == ("rtx4090", int(23.5 * (1 << 30)))
    assert card["reserve_bytes"] > 0
    assert not card["simulated"]


def test_plan_of_several_cards_is_a_row_for_each(config: str) -> None:
    result = _run("plan", config, "--card", "large", "--card", "4MiB", "--card", "64KiB")
    assert result.exit_code == 1  # the wish does not fit on every one
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["card", "free", "wish", "request", "copied", "peak", "residency"]
    assert re.match(r"large +64.0 MiB +fits +\d\.\d{3} s +.* permanent$", rows[0])
    assert re.match(r"4MiB +4.0 MiB +shrunk +\d\.\d{3} s +.*text_encoder \d+/\d+ ", rows[1])
    assert re.match(r"64KiB +64.0 KiB +nothing fits +- +- +- +\S", rows[2])
    assert _run("plan", config, "--card", "large", "--card", "rtx4090").exit_code == 0


def test_all_cards_are_those_of_the_file_and_of_the_catalogue(config: str) -> None:
    found = json.loads(_run("plan", config, "--all-cards", "--json").stdout)
    names = [one["card"]["name"] for one in found]
    assert names == ["large", "small", *(card.name for card in CATALOGUE)]
    assert all(set(one) >= {"card", "components", "predicted"} for one in found)
    assert found[0] == _plan(config, "--card", "large")


def test_all_cards_leave_no_card_to_choose(config: str) -> None:
    result = _run("plan", config, "--all-cards", "--card", "large")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


def test_a_wish_for_an_unknown_component_is_one_message(folder: Path, tmp_path: Path) -> None:
    file = write_serve_file(tmp_path / "file.yaml", folder, components={"vea": "all"})
    result = _run("plan", str(file))
    assert result.exit_code == 2
    assert "vea" in result.stderr
    assert "transformer" in result.stderr
    assert "Traceback" not in result.output


# --- survey ----------------------------------------------------------------------------------
def test_survey_shows_layers_by_list_and_bytes(config: str) -> None:
    result = _run("survey", config)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        *("component", "layers", "weights", "trunk", "largest", "layer", "buffers")
    ]
    assert re.match(r"transformer +12 +5\.9 MiB ", next(x for x in lines if "transformer" in x))
    assert "transformer: transformer_blocks 12" in lines


def test_survey_of_a_model_that_is_not_here_says_what_it_shows() -> None:
    result = _run("survey", "Qwen/Qwen-Image-2.1", "--json")
    assert result.exit_code == 0, result.output
    assert "warning: Qwen/Qwen-Image-2.1 is not on this machine" in result.stderr
    found = json.loads(result.stdout)
    assert [one["name"] for one in found["components"]] == ["vae", "text_encoder", "transformer"]
    assert len(found["warnings"]) == 1


def test_survey_of_nothing_is_one_message() -> None:
    result = _run("survey", "pictures")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: pictures is neither a Serve file (.yaml), a folder")


def _plan(*arguments: str) -> dict[str, Any]:
    result = _run("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _load(folder: Path) -> LoadedPipeline:
    return load_pipeline(ModelConfig(name="tiny", path=str(folder), dtype="float32"))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)
