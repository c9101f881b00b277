"""Owns the host copies of forward and streamed units: once each, in the weights' own layout.

One contiguous page-aligned anonymous mapping per unit, page-locked in place in pieces of at most
1 GiB where the card has a runtime for it. Permanent units never come here.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from offload.errors import StateError
from offload.parts import Part, loaded_parts
from offload.unit import Unit

PIECE_BYTES = 1 << 30  # one registration; a copy never crosses a piece


class Pinner(Protocol):
    """Page-locks host memory in place. False: not pinned, and nothing is left behind."""

    def register(self, address: int, num_bytes: int) -> bool: ...

    def unregister(self, address: int) -> bool:
        """False: the memory must stay mapped for the life of the process."""


@dataclass(slots=True)
class _HostCopy:
    mapping: mmap.mmap
    tensor: torch.Tensor  # host, uint8 (unit.num_bytes,)
    pinned: list[tuple[int, int]] = field(default_factory=list)  # (address, bytes) as registered


class HostStore:
    """Host copies by unit. ``drop`` only after the transfers that read them have drained."""

    def __init__(self, pinner: Pinner | None = None) -> None:
        self._pinner = pinner
        self._copies: dict[Unit, _HostCopy] = {}
        self._stuck: list[_HostCopy] = []  # still locked by the driver: never unmapped

    @property
    def store_bytes(self) -> int:
        return sum(copy.tensor.numel() for copy in self._copies.values())

    @property
    def pinned_bytes(self) -> int:
        return sum(size for copy in self._copies.values() for _, size in copy.pinned)

    def host(self, unit: Unit) -> None:
        """Take a loaded unit in, one storage at a time; its loaded storages may be freed after."""
        if unit in self._copies:
            raise StateError(f"{unit.name} already has a host copy")
        if unit.num_bytes == 0:
            return
        self.keep(unit, loaded_parts(unit))
        self._pin(self._copies[unit])

    def keep(self, unit: Unit, parts: Iterable[Part]) -> None:
        """A host copy without a pin: nothing is lent from it, it only outlasts a sleep."""
        mapping = mmap.mmap(-1, unit.num_bytes)
        tensor = torch.frombuffer(mapping, dtype=torch.uint8)
        for span, read in parts:
            read(tensor[span.offset : span.offset + span.num_bytes], 0)
        self._copies[unit] = _HostCopy(mapping, tensor)
        unit.host = tensor

    def drop(self, unit: Unit) -> None:
        """Forget a unit's host copy and unlock its pages; idempotent."""
        copy = self._copies.pop(unit, None)
        unit.host = None
        if copy is None or self._pinner is None:
            return
        if not all([self._pinner.unregister(address) for address, _ in copy.pinned]):
            self._stuck.append(copy)

    def drop_all(self) -> None:
        for unit in list(self._copies):
            self.drop(unit)

    def _pin(self, copy: _HostCopy) -> None:
        if self._pinner is None:
            return
        start, total = copy.tensor.data_ptr(), len(copy.mapping)
        for offset in range(0, total, PIECE_BYTES):
            size = min(PIECE_BYTES, total - offset)
            if not self._pinner.register(start + offset, size):
                return  # go on without a pin: right, only slower
            copy.pinned.append((start + offset, size))


def pieces(memory: torch.Tensor) -> list[slice]:
    """Cut a unit's bytes where registrations end, so that no copy crosses one."""
    total = memory.numel()
    return [slice(at, min(at + PIECE_BYTES, total)) for at in range(0, total, PIECE_BYTES)]
