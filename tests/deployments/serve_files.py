"""Serve files for the tests of commands."""

from pathlib import Path
from typing import Any

import yaml


def write_serve_file(
    file: Path, folder: Path | str, host: str = "127.0.0.1", port: int = 8000, **args: Any
) -> Path:
    """A file that serves ``folder`` on two simulated cards; ``args`` replace its own."""
    plain: dict[str, Any] = {
        "model": {"name": "tiny", "path": str(folder), "dtype": "float32"},
        "cards": {
            "gpu": "never",
            "simulated": [
                {"name": "large", "memory": "64MiB", "rate": "2GB/s"},
                {"name": "small", "memory": "16MiB", "rate": "1GB/s", "used": "1MiB"},
            ],
        },
        "defaults": {"size": "64x64", "steps": 2},
    }
    application = {
        "name": "tenure",
        "import_path": "deployments.app:build_app",
        "args": {**plain, **args},
    }
    content = {
        "http_options": {"host": host, "port": port},
        "applications": [application],
    }
    file.write_text(yaml.safe_dump(content))
    return file
