"""Which files hold a component's weights, and why there may be none.

Knows how diffusers and transformers name files; knows nothing of pipelines or torch.
"""

import json
from pathlib import Path
from typing import Any

from deployments.errors import ModelError
from deployments.weights import TensorHeader, read_header

STEMS = ("diffusion_pytorch_model", "model")  # how diffusers and transformers name weights
PICKLED = (".bin", ".ckpt", ".pt", ".pth")  # may run code when they are read


def read_tensors(folder: Path, name: str) -> dict[str, TensorHeader]:
    """Tensor name -> header, over all files of a component; ModelError where one is not whole."""
    tensors: dict[str, TensorHeader] = {}
    for file in _weight_files(folder, name):
        tensors.update(read_header(file))
    return tensors


def _weight_files(folder: Path, name: str) -> list[Path]:
    """The files that will be loaded: one whole file, or the shards that the index lists."""
    for stem in STEMS:
        index = folder / f"{stem}.safetensors.index.json"
        whole = folder / f"{stem}.safetensors"
        if whole.is_file():
            return [whole]
        if index.is_file():
            return _shards(index, name)
    raise ModelError(_why_no_weights(folder, name))


def _shards(index: Path, name: str) -> list[Path]:
    weight_map = read_json(index).get("weight_map", {})
    shards = [index.parent / file for file in sorted(set(weight_map.values()))]
    missing = [shard for shard in shards if not shard.is_file()]
    if missing or not shards:
        raise ModelError(
            f"{name} lacks {len(missing)} of the {len(shards)} files that {index.name} lists "
            f"({name_first(missing, index.parent)}); download the model again"
        )
    return shards


def _why_no_weights(folder: Path, name: str) -> str:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    pickled = [file for file in files if file.suffix in PICKLED]
    variants = [file for file in files if file.suffix == ".safetensors"]
    if variants:
        return (
            f"{name} has weights under names that are not loaded ({name_first(variants, folder)}); "
            f"name the file {STEMS[0]}.safetensors or {STEMS[1]}.safetensors"
        )
    if pickled:
        return (
            f"{name} has weights only as {name_first(pickled, folder)}, which may run code when "
            "read; only safetensors are loaded: convert it with "
            "save_pretrained(safe_serialization=True)"
        )
    return f"{name} has no weights: {folder} holds no safetensors file; download the model again"


def read_json(file: Path) -> dict[str, Any]:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON ({error}); download it again") from error
    if not isinstance(read, dict):
        raise ModelError(f"{file} holds no JSON object; download it again")
    return read


def name_first(files: list[Path], root: Path) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].relative_to(root)}{more}" if files else "none"
