"""Is the model folder whole? Answered from names, JSON and headers, before a weight is read.

Knows the layout of a diffusers folder; knows neither torch nor diffusers, and downloads nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.errors import ModelError
from deployments.weight_files import name_first, read_json, read_tensors
from deployments.weights import TensorHeader

INDEX_NAME = "model_index.json"
# Parts that hold words or settings, no weights.
WITHOUT_WEIGHTS = re.compile(r"Tokenizer|Processor|FeatureExtractor|Scheduler")
CONVERTED = ("F32", "F16", "BF16")  # what a dtype on load applies to
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFiles:
    """One component on disk; no tensors where it has no weights."""

    name: str
    library: str  # that its class comes from
    class_name: str
    tensors: Mapping[str, TensorHeader]
    config: Mapping[str, Any]  # of config.json

    @property
    def weight_bytes(self) -> int:
        """As stored; another dtype on load changes it."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    def bytes_as(self, dtype: str) -> int:
        """Once loaded in ``dtype``, which 16- and 32-bit floats are converted to."""
        return sum(
            tensor.num_elements * DTYPE_BYTES[dtype]
            if tensor.dtype in CONVERTED
            else tensor.num_bytes
            for tensor in self.tensors.values()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder that was found whole."""

    path: Path
    pipeline_class: str
    components: Mapping[str, ComponentFiles]

    @property
    def weight_bytes(self) -> int:
        return sum(component.weight_bytes for component in self.components.values())


def find_model_folder(
    source: str | Path, *, revision: str | None = None, local_files_only: bool = True
) -> Path | None:
    """The folder of a path, or of a hub name in the local cache.

    None where a hub name may be downloaded: what the cache has of it may be half of it.
    """
    if Path(source).is_dir():
        return Path(source)
    if isinstance(source, Path) or not is_hub_name(source):
        raise ModelError(
            f"the model folder {source} does not exist; set model.path to a folder that holds "
            f"{INDEX_NAME}"
        )
    return _find_in_cache(source, revision) if local_files_only else None


def check_model_folder(path: Path) -> ModelFolder:
    """Every component is there and every file whole, or ModelError says which one is not."""
    if not path.is_dir():
        raise ModelError(f"the model folder {path} does not exist; set model.path to a folder")
    leftovers = sorted(path.rglob("*.incomplete"))
    if leftovers:
        raise ModelError(
            f"{path} is half downloaded ({name_first(leftovers, path)}); let the download end or "
            "start it again, and delete what is left over"
        )
    pipeline_class, entries = read_index(path)
    return ModelFolder(
        path=path,
        pipeline_class=pipeline_class,
        components={
            name: _check_component(path, name, library, class_name)
            for name, (library, class_name) in entries.items()
        },
    )


def is_hub_name(source: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None and not source.startswith(".")


def _find_in_cache(name: str, revision: str | None) -> Path:
    # Late: only a hub name needs the hub's library.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"the model {name} (revision {revision or 'main'}) is neither a folder nor in the "
            f"local cache, and model.local_files_only is true; download it ('hf download {name}'), "
            "give model.path, or set model.local_files_only to false"
        ) from error


def read_index(path: Path) -> tuple[str, dict[str, tuple[str, str]]]:
    """The pipeline's class, and component -> (library, class)."""
    file = path / INDEX_NAME
    if not file.is_file():
        raise ModelError(
            f"{path} has no {INDEX_NAME}: it is no diffusers model folder; set model.path to the "
            "folder that holds it"
        )
    index = read_json(file)
    if not isinstance(index.get("_class_name"), str):
        raise ModelError(
            f"{file} names no pipeline class of diffusers (found {index.get('_class_name')!r}); "
            "code that comes with a checkpoint is not run"
        )
    entries = {name: entry for name, entry in index.items() if _is_component(name, entry)}
    return index["_class_name"], {name: (str(e[0]), e[1]) for name, e in entries.items()}


def _is_component(name: str, entry: object) -> bool:
    """Entries are [library, class]; [null, null] is a part that this checkpoint leaves out."""
    is_pair = isinstance(entry, list) and len(entry) == 2
    return is_pair and not name.startswith("_") and isinstance(entry[1], str)  # type: ignore[index]


def _check_component(path: Path, name: str, library: str, class_name: str) -> ComponentFiles:
    folder = path / name
    if not folder.is_dir() or not any(folder.iterdir()):
        raise ModelError(
            f"{name} ({class_name}) is missing: {folder} is not there or empty; download the model "
            "again"
        )
    config = folder / "config.json"
    has_weights = config.is_file() and not WITHOUT_WEIGHTS.search(class_name)
    return ComponentFiles(
        name=name,
        library=library,
        class_name=class_name,
        tensors=read_tensors(folder, name) if has_weights else {},
        config=read_json(config) if has_weights else {},
    )
