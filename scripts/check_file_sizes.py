"""Refuses files over 500 kB, the demo checkpoint apart; run by ``make test``.

It looks at what git would commit, and at every file where there is no git.
"""

import subprocess
import sys
from pathlib import Path

LIMIT_BYTES = 500_000
ROOT = Path(__file__).resolve().parents[1]
EXEMPT = {"deployments/demo/checkpoint": 8_000_000}  # folder -> limit of all its files together
SKIPPED = {".git", "build", "dist", "__pycache__"}


def listed_files() -> list[Path]:
    """Tracked and committable files."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        out = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        return [path for path in found if not _skipped(path.relative_to(ROOT))]
    return [ROOT / name for name in out.decode().split("\0") if name]


def _skipped(path: Path) -> bool:
    return any(part in SKIPPED or part.startswith(".venv") for part in path.parts)


def too_large(files: list[Path]) -> list[str]:
    """One line per file or exempt folder that is over its limit."""
    found = []
    folders = dict.fromkeys(EXEMPT, 0)
    for path in sorted(p for p in files if p.is_file()):
        size, name = path.stat().st_size, path.relative_to(ROOT).as_posix()
        folder = next((f for f in EXEMPT if name.startswith(f + "/")), None)
        if folder:
            folders[folder] += size
        elif size > LIMIT_BYTES:
            found.append(f"{name}: {size} bytes, the limit is {LIMIT_BYTES}")
    found += [
        f"{folder}: {size} bytes together, the limit is {EXEMPT[folder]}"
        for folder, size in folders.items()
        if size > EXEMPT[folder]
    ]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(too_large(listed_files())) or 0)
