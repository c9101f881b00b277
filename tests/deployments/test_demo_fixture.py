"""A checkpoint loaded in its own dtype keeps its weights in the files' mappings."""

from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from tests.deployments.tiny_pipelines import save_tiny_pipeline

COMPONENTS = ("text_encoder", "transformer", "vae")


def mapped_ranges(folder: Path) -> list[tuple[int, int]]:
    """Addresses at which this process maps the folder's weight files."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(str(folder)) and ".safetensors" in fields[5]:
            low, high = fields[0].split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges


def share_mapped(folder: Path, model: torch.nn.Module) -> float:
    """Share of the model's parameter bytes that lie in the mappings of the folder's files."""
    ranges = mapped_ranges(folder)
    total = mapped = 0
    for weight in model.parameters():
        inside = any(low <= weight.data_ptr() < high for low, high in ranges)
        total += weight.nbytes
        mapped += weight.nbytes * inside
    return mapped / total


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random bfloat16 checkpoint."""
    return save_tiny_pipeline(tmp_path_factory.mktemp("tiny"))


def test_fixture_is_a_few_megabytes(folder: Path) -> None:
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 1_000_000 < size_bytes < 8_000_000


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs a list of mappings")
def test_matching_dtype_leaves_parameters_in_the_mapping(folder: Path) -> None:
    loaded = DiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16)
    for name in COMPONENTS:
        assert share_mapped(folder, getattr(loaded, name)) == 1.0, name


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs a list of mappings")
def test_converted_dtype_leaves_none_in_the_mapping(folder: Path) -> None:
    loaded = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    for name in COMPONENTS:
        assert share_mapped(folder, getattr(loaded, name)) == 0.0, name


def test_fixture_draws(folder: Path) -> None:
    loaded = DiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16)
    loaded.set_progress_bar_config(disable=True)
    picture = loaded("a red circle", height=64, width=64, num_inference_steps=2).images[0]
    assert picture.size == (64, 64)
