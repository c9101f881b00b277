"""A model folder that is not whole is refused before a weight is read, with what to do about it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deployments.errors import ModelError
from deployments.loading import check_model_folder, find_model_folder

WEIGHTS: dict[str, np.ndarray] = {
    "a.weight": np.ones((4, 8), np.float32),
    "a.bias": np.ones(8, np.float16),
}
WEIGHT_BYTES = 4 * 8 * 4 + 8 * 2
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole folder: a VAE in one file, a text encoder in two shards, a tokenizer, a scheduler."""
    root = tmp_path / "model"
    _write_json(root / "model_index.json", {
        "_class_name": "SomePipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "SomeScheduler"],
        "text_encoder": ["transformers", "SomeEncoder"],
        "tokenizer": ["transformers", "SomeTokenizer"],
        "vae": ["diffusers", "SomeVAE"],
        "image_encoder": [None, None],
        "sample_sigmas": None,
    })  # fmt: skip
    _write_json(root / "scheduler" / "scheduler_config.json", {})
    _write_json(root / "tokenizer" / "tokenizer_config.json", {})
    _write_json(root / "vae" / "config.json", {"force_upcast": True})
    save_file(WEIGHTS, root / "vae" / "diffusion_pytorch_model.safetensors")
    _write_json(root / "text_encoder" / "config.json", {})
    for shard, (name, weight) in zip(SHARDS, WEIGHTS.items(), strict=True):
        save_file({name: weight}, root / "text_encoder" / shard)
    weight_map = dict(zip(WEIGHTS, SHARDS, strict=True))
    _write_json(root / "text_encoder" / "model.safetensors.index.json", {"weight_map": weight_map})
    return root


def test_a_whole_folder_tells_its_components_and_bytes(folder: Path) -> None:
    found = check_model_folder(folder)
    assert found.pipeline_class == "SomePipeline"
    assert {name: part.weight_bytes for name, part in found.components.items()} == {
        "scheduler": 0,
        "text_encoder": WEIGHT_BYTES,
        "tokenizer": 0,
        "vae": WEIGHT_BYTES,
    }
    assert found.weight_bytes == 2 * WEIGHT_BYTES
    assert found.components["vae"].config == {"force_upcast": True}
    weight = found.components["vae"].tensors["a.weight"]
    assert (weight.dtype, weight.shape, weight.num_elements) == ("F32", (4, 8), 32)


def _remove_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def _remove_component(folder: Path) -> None:
    shutil.rmtree(folder / "vae")


def _empty_component(folder: Path) -> None:
    shutil.rmtree(folder / "scheduler")
    (folder / "scheduler").mkdir()


def _remove_shard(folder: Path) -> None:
    (folder / "text_encoder" / SHARDS[1]).unlink()


def _truncate(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def _truncate_in_the_header(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def _leave_nothing_of_the_file(folder: Path) -> None:
    (folder / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"")


def _scramble_the_header(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:10] = b"??"
    file.write_bytes(bytes(data))


def _leave_a_pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 144\n"
    (folder / "vae" / "diffusion_pytorch_model.safetensors").write_text(text)


def _keep_only_pickled_weights(folder: Path) -> None:
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"x")


def _keep_only_a_variant(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.rename(folder / "vae" / "diffusion_pytorch_model.fp16.safetensors")


def _remove_weights(folder: Path) -> None:
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()


def _leave_a_download_unfinished(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / ".cache" / "abc.incomplete").touch()


def _break_json(folder: Path) -> None:
    (folder / "vae" / "config.json").write_text('{"force')


def _write_a_list(folder: Path) -> None:
    (folder / "vae" / "config.json").write_text("[]")


def _name_foreign_code(folder: Path) -> None:
    _write_json(folder / "model_index.json", {"_class_name": ["pipeline", "TheirPipeline"]})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove_index, r"has no model_index.json.*set model.path"),
        (_remove_component, r"^vae \(SomeVAE\) is missing.*download the model again"),
        (_empty_component, r"^scheduler \(SomeScheduler\) is missing.*or empty"),
        (_remove_shard, rf"^text_encoder lacks 1 of the 2 files.*\({SHARDS[1]}\)"),
        (_truncate, r"has \d+ bytes but its header promises \d+.*download it again"),
        (_truncate_in_the_header, r"has 20 bytes and ends inside its own header"),
        (_leave_nothing_of_the_file, r"no safetensors file \(0 bytes\)"),
        (_scramble_the_header, r"unreadable header"),
        (_leave_a_pointer, r"Git LFS pointer.*git lfs pull"),
        (_keep_only_pickled_weights, r"^vae .*model\.bin, which may run code.*only safetensors"),
        (_keep_only_a_variant, r"^vae .*not loaded \(diffusion_pytorch_model.fp16.safetensors\)"),
        (_remove_weights, r"^vae has no weights.*download the model again"),
        (_leave_a_download_unfinished, r"half downloaded \(\.cache/abc\.incomplete\)"),
        (_break_json, r"config.json is no JSON"),
        (_write_a_list, r"config.json holds no JSON object"),
        (_name_foreign_code, r"code that comes with a checkpoint is not run"),
    ],
)
def test_each_damage_has_one_clear_message(folder: Path, damage, message: str) -> None:
    check_model_folder(folder)
    damage(folder)
    with pytest.raises(ModelError, match=re.compile(message, re.DOTALL)):
        check_model_folder(folder)


def test_every_missing_shard_is_counted(folder: Path) -> None:
    for shard in SHARDS:
        (folder / "text_encoder" / shard).unlink()
    with pytest.raises(ModelError, match=rf"lacks 2 of the 2 .*\({SHARDS[0]} and 1 more\)"):
        check_model_folder(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent does not exist; set model.path"):
        check_model_folder(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"absent does not exist; set model.path"):
        find_model_folder(str(tmp_path / "absent"))


def test_a_folder_is_found_as_it_is(folder: Path) -> None:
    assert find_model_folder(str(folder)) == folder


def test_a_hub_name_is_found_in_the_cache(cache: Path) -> None:
    revision = "0" * 40
    snapshot = cache / "models--some--model" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (cache / "models--some--model" / "refs").mkdir()
    (cache / "models--some--model" / "refs" / "main").write_text(revision)
    assert find_model_folder("some/model") == snapshot


def test_a_hub_name_that_is_not_cached_is_refused(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"some/model \(revision main\).*hf download some/model"):
        find_model_folder("some/model")


def test_a_hub_name_that_may_be_downloaded_is_left_to_the_download(cache: Path) -> None:
    (cache / "models--some--model" / "snapshots" / ("0" * 40)).mkdir(parents=True)  # half of it
    assert find_model_folder("some/model", local_files_only=False) is None


def test_checking_a_folder_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from deployments.loading import check_model_folder\n"
        f"check_model_folder(Path({str(folder)!r}))\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def _write_json(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
