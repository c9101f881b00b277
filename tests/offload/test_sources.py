"""Guarantee: the bytes of a weight that lies in a mapped safetensors file are found in it."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from offload import StateError
from offload.sources import FileRange, Mappings, OpenFiles

WEIGHTS = {"first": torch.arange(5000.0), "second": torch.arange(7, dtype=torch.int16)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file(WEIGHTS, path)
    return path


def find(tensor: torch.Tensor) -> FileRange | None:
    return Mappings.read().find(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def found(tensor: torch.Tensor) -> FileRange:
    where = find(tensor)
    assert where is not None
    return where


def read(where: FileRange, start: int = 0, num_bytes: int | None = None) -> bytes:
    buffer = torch.empty(num_bytes or where.num_bytes - start, dtype=torch.uint8)
    with OpenFiles() as files:
        files.read(where, start, buffer)
        files.check()
    return bytes(buffer.tolist())


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(torch.uint8).tolist())


def test_every_weight_is_found_and_read_back_whole_and_from_any_byte_on(file: Path) -> None:
    loaded = load_file(file)
    for name, weight in loaded.items():
        where = found(weight)
        assert (where.source.path, where.pristine) == (str(file), True)
        assert read(where) == as_bytes(WEIGHTS[name])
        assert read(where, start=3, num_bytes=5) == as_bytes(WEIGHTS[name])[3:8]


def test_the_file_is_known_by_what_it_holds_whatever_its_name(file: Path) -> None:
    blob = file.rename(file.parent / "0a1b2c")
    link = file.parent / "model.safetensors"
    link.symlink_to(blob)
    loaded = load_file(link)
    assert read(found(loaded["first"])) == as_bytes(WEIGHTS["first"])


def test_anonymous_memory_has_no_source(file: Path) -> None:
    loaded = load_file(file)
    assert find(WEIGHTS["first"]) is None
    assert find(loaded["first"].clone()) is None


def test_a_mapping_of_another_kind_of_file_is_no_source(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"\0" * 4096)
    mapped = torch.from_file(str(path), size=1024, dtype=torch.float32)
    assert find(mapped) is None


def test_bytes_beyond_the_end_of_the_file_are_not_found(file: Path) -> None:
    loaded = load_file(file)
    weight = loaded["first"]
    size = file.stat().st_size
    assert Mappings.read().find(weight.data_ptr(), size) is None


def test_a_mapping_that_was_written_to_says_so(file: Path) -> None:
    loaded = load_file(file)
    loaded["first"][0] = 7.0
    assert not found(loaded["first"]).pristine


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_lost_its_name_while_mapped_is_no_source(change: str, file: Path) -> None:
    loaded = load_file(file)
    file.unlink()
    if change == "replaced":
        save_file(WEIGHTS, file)
    assert find(loaded["first"]) is None


def rewrite(file: Path) -> None:
    save_file({name: weight + 1 for name, weight in WEIGHTS.items()}, file)


def touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("change", [rewrite, touch, cut, Path.unlink])
def test_a_changed_file_is_not_read(change, file: Path) -> None:
    where = found(load_file(file)["first"])
    change(file)
    with pytest.raises(StateError, match=rf"{file.name}.*Restart the replica"):
        read(where)


@pytest.mark.parametrize("change", [touch, cut])
def test_a_file_that_changes_while_it_is_read_is_told(change, file: Path) -> None:
    where = found(load_file(file)["first"])
    with OpenFiles() as files:
        files.read(where, 0, torch.empty(8, dtype=torch.uint8))
        change(file)
        with pytest.raises(StateError, match=f"{file.name}.*changed while it was read"):
            files.check()


def test_files_are_closed(file: Path) -> None:
    where = found(load_file(file)["first"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read(where)
    assert len(os.listdir("/proc/self/fd")) == before
