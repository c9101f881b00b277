"""What this machine has to give: memory under its cgroup limits, shared memory, disk, ports.

Readings only, no judgement. A root folder stands in for ``/``, so that other machines can be read
in tests.
"""

import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory that this process may still take; page cache, which can be given back, is free."""

    total_bytes: int
    limit_bytes: int | None  # the tightest cgroup limit; None where the machine is the limit
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _CgroupFiles:
    """How one version of cgroups names its files."""

    base: str
    limit: str
    usage: str
    cache_keys: tuple[str, str]  # page cache that the kernel takes back under pressure


V1 = _CgroupFiles(
    base="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache_keys=("total_inactive_file", "total_active_file"),
)
V2 = _CgroupFiles(
    base="sys/fs/cgroup",
    limit="memory.max",
    usage="memory.current",
    cache_keys=("inactive_file", "active_file"),
)


def read_host_memory(root: Path = ROOT) -> HostMemory | None:
    """None where the system does not say, as outside Linux."""
    machine = root / "proc/meminfo"
    if not machine.is_file():
        return None
    sizes = _read_table(machine, unit_bytes=1024)
    total, available = sizes["MemTotal:"], sizes["MemAvailable:"]
    limits = [entry for entry in _read_limits(root) if entry[0] < total]
    return HostMemory(
        total_bytes=total,
        limit_bytes=min((limit for limit, _ in limits), default=None),
        available_bytes=max(0, min([available, *(headroom for _, headroom in limits)])),
    )


def _read_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, headroom) of this process' cgroup and of every one above it."""
    files, path = _own_cgroup(root)
    base = root / files.base
    own = base / path.lstrip("/")
    for folder in (own, *own.parents):
        if not folder.is_relative_to(base):
            return
        limit = folder / files.limit
        # In a container the path may be the host's and not visible here; the base then is ours.
        if not limit.is_file() or not limit.read_text().strip().isdecimal():
            continue
        limit_bytes = int(limit.read_text())
        stat = _read_table(folder / "memory.stat")
        cache_bytes = sum(stat.get(key, 0) for key in files.cache_keys)
        yield limit_bytes, limit_bytes - (int((folder / files.usage).read_text()) - cache_bytes)


def _own_cgroup(root: Path) -> tuple[_CgroupFiles, str]:
    membership = root / "proc/self/cgroup"
    lines = membership.read_text().splitlines() if membership.is_file() else []
    entries = [line.split(":", 2) for line in lines]
    for _, controllers, path in entries:
        if "memory" in controllers.split(","):
            return V1, path
    return V2, next((path for _, controllers, path in entries if not controllers), "/")


def _read_table(file: Path, unit_bytes: int = 1) -> dict[str, int]:
    rows = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    return {row[0]: int(row[1]) * unit_bytes for row in rows}


def free_disk_bytes(path: Path) -> int:
    """Free bytes of the disk that ``path``, or its nearest existing parent, lies on."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
