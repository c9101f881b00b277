"""Where a model's configuration files are: its folder, the hub's local cache, or shipped with us.

Knows files and names; no torch. Weights need not be there and none is opened.
"""

from dataclasses import dataclass
from pathlib import Path

from deployments.config import ModelConfig
from deployments.errors import ModelError
from deployments.loading import (
    INDEX_NAME,
    WITHOUT_WEIGHTS,
    ComponentFiles,
    ModelFolder,
    find_model_folder,
    read_index,
)
from deployments.paths import resolve
from deployments.weight_files import read_json

SHIPPED = "configs/architectures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a model is made of; ``notice`` says when that is not the model's own folder."""

    folder: ModelFolder
    notice: str = ""


def find_architecture(model: ModelConfig) -> Architecture:
    """Its own files where they can be found, else those shipped for a model of that name."""
    path = _own_folder(model)
    if path is not None:
        return Architecture(folder=read_architecture(path))
    shipped = shipped_architecture(model.name) or shipped_architecture(model.path)
    if shipped is None:
        raise ModelError(
            f"{model.source} is neither a folder of this machine nor in the hub's local cache, and "
            "planning downloads nothing: fetch the model, name one of the architectures that come "
            f"with Tenure ({', '.join(shipped_names())}), or give --facts with a survey's JSON"
        )
    notice = (
        f"{model.source} is not on this machine: planned from the architecture of {shipped.name} "
        "that comes with Tenure"
    )
    by_own_name = model.source == shipped.name
    return Architecture(folder=read_architecture(shipped), notice="" if by_own_name else notice)


def _own_folder(model: ModelConfig) -> Path | None:
    try:
        return find_model_folder(model.source, revision=model.revision, local_files_only=True)
    except ModelError:  # it is nowhere here
        return None


def shipped_names() -> tuple[str, ...]:
    """The models whose configuration files come with Tenure."""
    root = Path(resolve(SHIPPED))
    return tuple(sorted(index.parent.name for index in root.glob(f"*/{INDEX_NAME}")))


def shipped_architecture(name: str) -> Path | None:
    """The folder for ``qwen-image-2.1``, or for a hub name that ends so."""
    wanted = name.rpartition("/")[2].lower().removesuffix("-diffusers")
    return Path(resolve(SHIPPED)) / wanted if wanted in shipped_names() else None


def read_architecture(path: Path) -> ModelFolder:
    """The parts that may hold weights, each with its configuration, if it has one."""
    pipeline_class, entries = read_index(path)
    return ModelFolder(
        path=path,
        pipeline_class=pipeline_class,
        components={
            name: _read_component(path / name, library, class_name)
            for name, (library, class_name) in entries.items()
            if not WITHOUT_WEIGHTS.search(class_name)
        },
    )


def _read_component(folder: Path, library: str, class_name: str) -> ComponentFiles:
    config = folder / "config.json"
    return ComponentFiles(
        name=folder.name,
        library=library,
        class_name=class_name,
        tensors={},
        config=read_json(config) if config.is_file() else {},
    )
