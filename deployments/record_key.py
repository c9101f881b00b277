"""What has to be the same for a calibration record to hold.

Facts about the model's files, the card's kind, the settings and the versions; nothing that changes
from start to start, such as the memory that is free.
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from deployments.config import AppConfig
from deployments.version import version
from offload import CardFacts

PACKAGES = ("torch", "diffusers", "transformers")


def record_key(config: AppConfig, card: CardFacts) -> dict[str, Any]:
    """JSON values by circumstance; two of them are compared entry by entry."""
    return {
        "model": config.model.model_dump(mode="json", exclude={"sizes"}),
        "files": _files(Path(config.model.source)),
        "components": {
            name: entry.model_dump(mode="json") for name, entry in config.components.items()
        },
        "card": {"name": card.name, "memory_bytes": card.memory_bytes},
        "limits": config.limits.model_dump(mode="json"),
        "defaults": config.defaults.model_dump(mode="json"),
        "versions": {"tenure": version(), **{name: _version(name) for name in PACKAGES}},
    }


def _files(folder: Path) -> dict[str, list[int]]:
    """Weight file -> size and time of change; of a hub name its revision has to tell."""
    if not folder.is_dir():
        return {}
    found = sorted(folder.rglob("*.safetensors"))
    stats = [(file.relative_to(folder).as_posix(), file.stat()) for file in found]
    return {name: [stat.st_size, int(stat.st_mtime)] for name, stat in stats}


def _version(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "none"
