"""Owns the host copies of forward and streamed units: once each, in the weights' own layout.

One contiguous page-aligned anonymous mapping per unit, page-locked in place in pieces of at most
1 GiB where the card has a runtime for it and the budget reaches. Permanent units never come here.
"""

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from offload.errors import StateError
from offload.parts import Part, loaded_parts
from offload.pin_budget import first_fit, locked_bytes
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
    stuck: bool = False  # still locked by the driver: never unmapped

    @property
    def locked_bytes(self) -> int:
        return sum(locked_bytes(size) for _, size in self.pinned)


class HostStore:
    """Host copies by unit. ``drop`` only after the transfers that read them have drained."""

    def __init__(self, pinner: Pinner | None = None) -> None:
        self._pinner = pinner
        self._copies: dict[Unit, _HostCopy] = {}
        self._stuck: list[_HostCopy] = []  # dropped, but the driver still holds them

    @property
    def store_bytes(self) -> int:
        return sum(copy.tensor.numel() for copy in self._copies.values())

    @property
    def pinned_bytes(self) -> int:
        """Really locked, in whole pages, also what the driver did not let go of."""
        return sum(copy.locked_bytes for copy in [*self._copies.values(), *self._stuck])

    @property
    def can_pin(self) -> bool:
        return self._pinner is not None

    def pinned_bytes_of(self, unit: Unit) -> int:
        return self._copies[unit].locked_bytes if unit in self._copies else 0

    def host(self, unit: Unit, parts: Iterable[Part] | None = None) -> None:
        """Take a unit in to lend it, by default as loaded; where it was may be freed after."""
        if unit in self._copies:
            raise StateError(f"{unit.name} already has a host copy")
        if unit.num_bytes == 0:
            return
        self.keep(unit, loaded_parts(unit) if parts is None else parts)

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
        if copy is not None:
            self._unlock(copy)
            if copy.stuck:
                self._stuck.append(copy)

    def drop_all(self) -> None:
        for unit in list(self._copies):
            self.drop(unit)

    def pin(self, ranked: Sequence[Unit], budget_bytes: int) -> None:
        """Lock the copies of the first units as far as the budget reaches; unlock the others.

        Only while no copy is under way. What is refused leaves its part to those that follow.
        """
        copies = [self._copies[unit] for unit in ranked]
        fits = first_fit([len(copy.mapping) for copy in copies], budget_bytes)
        for copy in (copy for copy, fit in zip(copies, fits, strict=True) if not fit):
            self._unlock(copy)
        for copy in (copy for copy in copies if not copy.pinned):
            if self.pinned_bytes + locked_bytes(len(copy.mapping)) <= budget_bytes:
                self._lock(copy)

    def _lock(self, copy: _HostCopy) -> None:
        if self._pinner is None:
            return
        start, total = copy.tensor.data_ptr(), len(copy.mapping)
        for offset in range(0, total, PIECE_BYTES):
            size = min(PIECE_BYTES, total - offset)
            if not self._pinner.register(start + offset, size):
                return  # go on without a pin: right, only slower
            copy.pinned.append((start + offset, size))

    def _unlock(self, copy: _HostCopy) -> None:
        if self._pinner is None or copy.stuck:
            return
        copy.stuck = not all([self._pinner.unregister(address) for address, _ in copy.pinned])
        if not copy.stuck:
            copy.pinned.clear()


def pieces(memory: torch.Tensor) -> list[slice]:
    """Cut a unit's bytes where registrations end, so that no copy crosses one."""
    total = memory.numel()
    return [slice(at, min(at + PIECE_BYTES, total)) for at in range(0, total, PIECE_BYTES)]
