"""A built wheel is enough: configs, the demo model and the fleet page are inside and are found."""

import json
import subprocess
import sys
import zipfile

import pytest

from scripts.import_graph import ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder that holds what pip would put into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("tenure-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def run(unpacked, code, *arguments):
    """Run code that imports the unpacked wheel, from a folder that has nothing of the project."""
    prelude = f"import sys; sys.path.insert(0, {str(unpacked)!r})\n"
    command = [sys.executable, "-P", "-c", prelude + code, *arguments]
    done = subprocess.run(command, cwd=unpacked.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_config_is_found_and_valid(unpacked):
    code = (
        "import json\n"
        "from deployments import serve_file\n"
        "assert serve_file.__file__.startswith(sys.path[0])\n"
        "names = [serve_file.read_serve_file(path).config.model.name for path in sys.argv[1:]]\n"
        "print(json.dumps(names))\n"
    )
    configs = [f"configs/{path.name}" for path in sorted((ROOT / "configs").glob("*.yaml"))]
    names = run(unpacked, code, *configs)
    assert "demo" in names
    assert len(names) == len(configs) >= 2


def test_the_shipped_architectures_are_found_and_a_model_is_planned_from_one(unpacked):
    code = (
        "import json\n"
        "from deployments.surveys import read_config, survey_model\n"
        "from deployments.architectures import shipped_names\n"
        "facts = survey_model(read_config('configs/qwen-image-2.1.yaml')).facts\n"
        "print(json.dumps([shipped_names(), [one.name for one in facts]]))\n"
    )
    names, components = run(unpacked, code)
    folders = (ROOT / "configs" / "architectures").glob("*/model_index.json")
    assert names == sorted(path.parent.name for path in folders)
    assert components == ["vae", "text_encoder", "transformer"]


def test_the_quickstarts_model_lies_in_the_wheel_and_is_whole(unpacked):
    code = (
        "import json\n"
        "from pathlib import Path\n"
        "from deployments.loading import check_model_folder\n"
        "from deployments.serve_file import read_serve_file\n"
        "source = read_serve_file('configs/quickstart.yaml').config.model.source\n"
        "folder = check_model_folder(Path(source))\n"
        "print(json.dumps([source, folder.pipeline_class]))\n"
    )
    source, pipeline = run(unpacked, code)
    assert source.startswith(str(unpacked))
    assert pipeline == "QwenImage21Pipeline"


def test_the_fleet_page_and_the_type_markers_are_inside(unpacked):
    for name in ("deployments/dashboard/index.html", "deployments/py.typed", "offload/py.typed"):
        assert (unpacked / name).is_file(), name


def test_the_checkpoint_can_be_read_by_anyone(unpacked):
    """safetensors writes files that only their owner may read."""
    wheel = next(unpacked.parent.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        files = [i for i in archive.infolist() if "/checkpoint/" in i.filename]
    assert files
    assert all((info.external_attr >> 16) & 0o444 == 0o444 for info in files)


def test_tests_and_manifests_are_not_inside(unpacked):
    assert {path.name.partition("-")[0] for path in unpacked.iterdir()} == {
        "deployments",
        "offload",
        "tenure",
    }
