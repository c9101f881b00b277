"""Free memory is the cgroup's, of either version and at any depth, not the machine's."""

import socket
from pathlib import Path

import pytest

from deployments.host import HostMemory, free_disk_bytes, port_is_free, read_host_memory

KIB = 1024
TOTAL, AVAILABLE = 1000 * KIB, 800 * KIB


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """1000 KiB of memory, 800 of them available, no cgroup limit."""
    _write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n")
    return tmp_path


def test_without_a_limit_the_machine_counts(machine: Path) -> None:
    assert read_host_memory(machine) == HostMemory(
        total_bytes=TOTAL, limit_bytes=None, available_bytes=AVAILABLE
    )


def test_a_system_that_does_not_say_is_not_guessed(tmp_path: Path) -> None:
    assert read_host_memory(tmp_path) is None


def test_version_two_counts_page_cache_as_free(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/\n")
    _write_v2(machine / "sys/fs/cgroup", limit=500 * KIB, usage=450 * KIB, cache=100 * KIB)
    found = read_host_memory(machine)
    assert found is not None
    assert (found.limit_bytes, found.available_bytes) == (500 * KIB, 150 * KIB)


def test_version_one_is_read_by_its_own_names(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "4:cpu,memory:/pod\n0::/\n")
    pod = machine / "sys/fs/cgroup/memory/pod"
    _write(pod / "memory.limit_in_bytes", str(500 * KIB))
    _write(pod / "memory.usage_in_bytes", str(450 * KIB))
    _write(pod / "memory.stat", f"total_inactive_file {60 * KIB}\ntotal_active_file {40 * KIB}\n")
    found = read_host_memory(machine)
    assert found is not None
    assert (found.limit_bytes, found.available_bytes) == (500 * KIB, 150 * KIB)


def test_the_tightest_limit_up_the_tree_binds(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/slice/pod\n")
    _write_v2(machine / "sys/fs/cgroup/slice/pod", limit=900 * KIB, usage=0, cache=0)
    _write_v2(machine / "sys/fs/cgroup/slice", limit=600 * KIB, usage=590 * KIB, cache=0)
    found = read_host_memory(machine)
    assert found is not None
    assert (found.limit_bytes, found.available_bytes) == (600 * KIB, 10 * KIB)


def test_a_path_that_is_hidden_in_a_container_leads_to_the_root(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/somewhere/on/the/host\n")
    _write_v2(machine / "sys/fs/cgroup", limit=500 * KIB, usage=100 * KIB, cache=0)
    found = read_host_memory(machine)
    assert found is not None
    assert found.available_bytes == 400 * KIB


@pytest.mark.parametrize("limit", ["max", str(1 << 62)])
def test_no_limit_is_no_limit(machine: Path, limit: str) -> None:
    _write(machine / "proc/self/cgroup", "0::/\n")
    _write_v2(machine / "sys/fs/cgroup", limit=limit, usage=0, cache=0)
    assert read_host_memory(machine) == HostMemory(
        total_bytes=TOTAL, limit_bytes=None, available_bytes=AVAILABLE
    )


def test_a_cgroup_above_its_limit_has_nothing_left(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/\n")
    _write_v2(machine / "sys/fs/cgroup", limit=100 * KIB, usage=120 * KIB, cache=0)
    found = read_host_memory(machine)
    assert found is not None
    assert found.available_bytes == 0


def test_this_machine_can_be_read() -> None:
    found = read_host_memory()
    assert found is None or 0 < found.available_bytes <= found.total_bytes


def test_disk_is_that_of_the_nearest_existing_folder(tmp_path: Path) -> None:
    assert free_disk_bytes(tmp_path / "not" / "there") > 0


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)


def _write_v2(folder: Path, *, limit: int | str, usage: int, cache: int) -> None:
    _write(folder / "memory.max", f"{limit}\n")
    _write(folder / "memory.current", f"{usage}\n")
    _write(folder / "memory.stat", f"anon 7\ninactive_file {cache}\nactive_file 0\n")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
