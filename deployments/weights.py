"""The header of a safetensors file: which tensors it holds, and whether all their bytes are there.

Reads the header only, never a weight. Knows nothing of folders, components or torch.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments.errors import ModelError

LENGTH_BYTES = 8  # a little-endian unsigned integer, the length of the JSON that follows
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
LFS_POINTER = (
    b"version "  # how a Git LFS pointer begins, a text file that stands in for the weights
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a file, as the header describes it."""

    dtype: str  # the format's own word: F32, BF16, F8_E4M3, ...
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> Mapping[str, TensorHeader]:
    """Tensor name -> its header; ModelError where the file is not whole."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(LENGTH_BYTES)
        header_bytes = _header_length(path, prefix, file_bytes)
        raw = file.read(header_bytes)
    tensors = _parse(path, raw)
    expected = LENGTH_BYTES + header_bytes + max((end for end, _ in tensors.values()), default=0)
    if file_bytes != expected:
        raise ModelError(
            f"{path} has {file_bytes} bytes but its header promises {expected}: the file is not "
            "whole; download it again"
        )
    return {name: tensor for name, (_, tensor) in tensors.items()}


def _header_length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if prefix.startswith(LFS_POINTER):
        raise ModelError(
            f"{path} is a Git LFS pointer, not weights; run 'git lfs pull' in the model folder"
        )
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == LENGTH_BYTES else None
    if length is None or length > MAX_HEADER_BYTES:
        raise ModelError(f"{path} is no safetensors file ({file_bytes} bytes); download it again")
    if LENGTH_BYTES + length > file_bytes:
        raise ModelError(
            f"{path} has {file_bytes} bytes and ends inside its own header: the file is not whole; "
            "download it again"
        )
    return int(length)


def _parse(path: Path, raw: bytes) -> dict[str, tuple[int, TensorHeader]]:
    """Tensor name -> (where its bytes end, header)."""
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        return {
            name: (
                entry["data_offsets"][1],
                TensorHeader(
                    dtype=entry["dtype"],
                    shape=tuple(entry["shape"]),
                    num_bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
                ),
            )
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{path} has an unreadable header ({error}); download it again") from error
