"""Whether a Serve file can run on this machine, line by line: ``ok``, or what to do.

Judges readings that ``host``, ``loading`` and ``doctor_cards`` take; starts nothing, opens no
context on a card, and reads no weight.
"""

import importlib.metadata
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from deployments import host
from deployments.api_keys import ApiKeys
from deployments.config import AppConfig, ModelConfig
from deployments.doctor_cards import examine_cards
from deployments.errors import ConfigError, TenureError
from deployments.finding import Finding
from deployments.loading import ModelFolder, check_model_folder, find_model_folder
from deployments.model_check import check_names
from deployments.openness import openness_warning
from deployments.serve_file import ServeFile, read_serve_file
from offload import format_bytes

OLDEST_RAY = "2.60"
PROCESS_BYTES = 2 << 30  # torch, diffusers and Ray in a replica's process, beside the weights
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 1 << 30  # Ray's object store; images are small
DISK_BYTES = 2 << 30  # Ray's session folder: logs and spilled objects


def examine(path: str) -> Iterator[Finding]:
    """Every check of a Serve file, in the order in which a start would meet them."""
    try:
        file = read_serve_file(path)
    except ConfigError as error:
        yield Finding.to_do("config", str(error))
        return
    yield Finding.fine("config", f"{path} serves {file.config.model.name}")
    yield examine_ray(importlib.metadata.version("ray"))
    yield examine_torchvision(
        importlib.metadata.version("torch"), importlib.metadata.requires("torchvision") or []
    )
    yield from examine_cards(file.config.cards)
    finding, folder = examine_model(file.config)
    yield finding
    yield examine_memory(host.read_host_memory(), weight_bytes(file.config.model, folder))
    yield examine_shared_memory(
        host.free_disk_bytes(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    )
    temporary = Path(tempfile.gettempdir())
    yield examine_disk(temporary, host.free_disk_bytes(temporary))
    yield examine_port(file)
    yield examine_access(file)


def examine_ray(version: str) -> Finding:
    if Version(version) < Version(OLDEST_RAY):
        return Finding.to_do(
            "ray", f"{version} is older than {OLDEST_RAY}: pip install -U 'ray[serve]'"
        )
    return Finding.fine("ray", version)


def examine_torchvision(torch: str, requirements: list[str]) -> Finding:
    """Each torchvision is built for one torch, which it names as a requirement."""
    needs = [need for need in map(Requirement, requirements) if need.name == "torch"]
    unmet = [need for need in needs if not need.specifier.contains(torch, prereleases=True)]
    if unmet:
        return Finding.to_do(
            "torchvision",
            f"needs {unmet[0]}, found torch {torch}: install the pair of constraints.txt",
        )
    return Finding.fine("torchvision", f"matches torch {torch}")


def examine_model(config: AppConfig) -> tuple[Finding, ModelFolder | None]:
    """The finding, and the folder where it is there and whole."""
    model = config.model
    try:
        path = find_model_folder(
            model.source, revision=model.revision, local_files_only=model.local_files_only
        )
        folder = check_model_folder(path) if path else None
        if folder is not None:
            check_names(config, folder)
    except TenureError as error:
        return Finding.to_do("model", str(error)), None
    if folder is None:
        return Finding.fine("model", f"{model.source} is downloaded at the start, if need be"), None
    size = format_bytes(folder.weight_bytes)
    found = f"{folder.pipeline_class} in {path} is whole, {size} of weights"
    return Finding.fine("model", found), folder


def weight_bytes(model: ModelConfig, folder: ModelFolder | None) -> int:
    """Bytes of all weights in the dtypes asked; 0 while they are not there."""
    components = folder.components if folder else {}
    return sum(files.bytes_as(model.dtype_of(name)) for name, files in components.items())


def examine_memory(memory: host.HostMemory | None, weight_bytes: int) -> Finding:
    """A replica may hold all weights on the host, beside what its process takes."""
    if memory is None:
        return Finding.fine("memory", "not checked: only Linux tells")
    limit = memory.limit_bytes
    of = (
        f"cgroup limit {format_bytes(limit)}" if limit else f"of {format_bytes(memory.total_bytes)}"
    )
    available, needed = memory.available_bytes, weight_bytes + PROCESS_BYTES
    found = f"{format_bytes(available)} free ({of}), {format_bytes(needed)} for each replica"
    if available < needed:
        return Finding.to_do("memory", f"{found}: give the machine or the container more memory")
    return Finding.fine("memory", found)


def examine_shared_memory(free_bytes: int | None) -> Finding:
    name = str(SHARED_MEMORY)
    if free_bytes is None:
        return Finding.fine(name, "not there: Ray uses files instead")
    if free_bytes < SHARED_MEMORY_BYTES:
        return Finding.to_do(
            name,
            f"{format_bytes(free_bytes)} free, Ray's object store wants "
            f"{format_bytes(SHARED_MEMORY_BYTES)}: start the container with --shm-size=2g",
        )
    return Finding.fine(name, f"{format_bytes(free_bytes)} free")


def examine_disk(folder: Path, free_bytes: int) -> Finding:
    if free_bytes < DISK_BYTES:
        return Finding.to_do(
            "disk",
            f"{format_bytes(free_bytes)} free under {folder}, Ray's session wants "
            f"{format_bytes(DISK_BYTES)}: free some, or set RAY_TMPDIR to another disk",
        )
    return Finding.fine("disk", f"{format_bytes(free_bytes)} free under {folder}")


def examine_port(file: ServeFile) -> Finding:
    address = f"{file.host}:{file.port}"
    if not host.port_is_free(file.host, file.port):
        return Finding.to_do(
            "port", f"{address} is taken: stop what listens there, or set http_options.port"
        )
    return Finding.fine("port", f"{address} is free")


def examine_access(file: ServeFile) -> Finding:
    """Who may draw: keys that can be read, or an address that only this machine reaches."""
    try:
        ApiKeys.of(file.config.server)
    except TenureError as error:
        return Finding.to_do("access", str(error))
    warning = openness_warning(file.host, file.config.server)
    if warning:
        return Finding.to_do("access", warning)
    server = file.config.server
    sources = [source for source in (server.api_keys_file, server.api_keys_env) if source]
    who = f"with a key of {' or '.join(sources)}" if sources else "from this machine only"
    return Finding.fine("access", who)
