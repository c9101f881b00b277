"""Which bytes of a simulated card are held, by label. Bytes leave when their memory really dies.

It knows nothing of capacity. A view that somebody keeps keeps the bytes counted, released or not.
"""

import itertools
import mmap
import weakref
from dataclasses import dataclass

import torch

from offload.errors import StateError
from offload.facts import aligned


@dataclass(slots=True, eq=False)
class Holding:
    """One live allocation."""

    label: str
    num_bytes: int  # as counted: rounded up to the alignment
    start: int
    released: bool = False


class Ledger:
    """Hands out page-aligned host memory as card memory and keeps count of it."""

    def __init__(self) -> None:
        self._holdings: dict[int, Holding] = {}  # number of the allocation -> what it holds
        self._numbers = itertools.count()
        self._peak_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        return sum(holding.num_bytes for holding in list(self._holdings.values()))

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes

    def reset_peak(self) -> None:
        self._peak_bytes = self.allocated_bytes

    def note_beside(self, num_bytes: int) -> None:
        """So many bytes that it does not count are held at this moment too."""
        self._peak_bytes = max(self._peak_bytes, self.allocated_bytes + num_bytes)

    def by_label(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for holding in list(self._holdings.values()):
            held[holding.label] = held.get(holding.label, 0) + holding.num_bytes
        return held

    def add(self, num_bytes: int, label: str) -> torch.Tensor:
        """A uint8 tensor (num_bytes,) on pages of its own, at offset 0 of its storage."""
        pages = mmap.mmap(-1, max(1, num_bytes))
        tensor = torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes]
        number = next(self._numbers)
        start = tensor.untyped_storage().data_ptr()
        self._holdings[number] = Holding(label, aligned(num_bytes), start)
        # The storage owns the pages, every view owns the storage: they die when the last view does.
        weakref.finalize(pages, self._holdings.pop, number).atexit = False
        self._peak_bytes = max(self._peak_bytes, self.allocated_bytes)
        return tensor

    def mark_released(self, tensor: torch.Tensor) -> None:
        start = tensor.untyped_storage().data_ptr()
        for holding in list(self._holdings.values()):
            if holding.start == start and not holding.released:
                holding.released = True
                return
        raise StateError(
            f"a tensor of {tensor.numel()} bytes is released that this card does not hold: it was "
            "released before, or another card handed it out; release each allocation once"
        )
