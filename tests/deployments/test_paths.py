"""Files that come with Tenure are found from any folder, in a clone and in an installed wheel."""

import subprocess
import sys
from pathlib import Path

import pytest

from deployments import paths

CHECKPOINT = "deployments/demo/checkpoint"


def test_a_file_of_the_clone_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.resolve(CHECKPOINT) == str(paths.ROOT / CHECKPOINT)


def test_the_readers_own_file_wins_over_the_one_that_ships(tmp_path, monkeypatch):
    own = tmp_path / CHECKPOINT
    own.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert paths.resolve(CHECKPOINT) == str(own)


def test_in_a_wheel_configs_lie_inside_the_package(tmp_path, monkeypatch):
    shipped = tmp_path / "site-packages/deployments/configs/quickstart.yaml"
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "site-packages/deployments")
    monkeypatch.setattr(paths, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert paths.resolve("configs/quickstart.yaml") == str(shipped)


@pytest.mark.parametrize("name", ["Qwen/Qwen-Image-2.1", "/nowhere/model", "models/missing"])
def test_a_name_that_exists_nowhere_comes_back_as_it_is(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.resolve(name) == name


def test_the_module_prints_the_full_path():
    command = [sys.executable, "-m", "deployments.paths", CHECKPOINT]
    printed = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert Path(printed.stdout.strip()) == paths.ROOT / CHECKPOINT
