"""Reads a Serve file, the YAML that ``serve run`` takes, for the commands that need no server.

Knows where the application's ``args`` and the HTTP address stand in it; the meaning of ``args``
belongs to ``config``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.config import AppConfig
from deployments.errors import ConfigError
from deployments.paths import resolve

HINT = "give a Serve file such as configs/quickstart.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFile:
    """One model on one fleet, and the address it is served at."""

    config: AppConfig
    host: str = "127.0.0.1"  # Serve's own defaults
    port: int = 8000


def read_serve_file(path: str) -> ServeFile:
    """ConfigError says which file, which field, and what is wrong with it."""
    content = _read_yaml(path)
    applications = content.get("applications")
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{path} has no single entry under 'applications'; {HINT}")
    try:
        config = AppConfig.model_validate(applications[0].get("args", {}))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_describe(error)}") from error
    http = content.get("http_options") or {}
    address = {key: http[key] for key in ("host", "port") if key in http}
    return ServeFile(config=config, **address)


def _read_yaml(path: str) -> dict[str, Any]:
    file = Path(resolve(path))
    if not file.is_file():
        raise ConfigError(f"there is no file {path}; {HINT}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no mapping; {HINT}")
    return content


def _describe(error: ValidationError) -> str:
    """One line a mistake: where it stands, and what is wrong."""
    lines = []
    for entry in error.errors():
        where = ".".join(str(part) for part in ("args", *entry["loc"]))
        lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')}")
    return "\n  ".join(["", *lines]) if len(lines) > 1 else lines[0]
