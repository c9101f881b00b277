"""Stands in for the runtime that page-locks host memory: what is locked, and what was asked."""

import mmap

PAGE = mmap.PAGESIZE


class FakePinner:
    """Records what is locked; refuses from the registration number ``refuse_from`` on."""

    def __init__(self, refuse_from: int | None = None, *, unlocks: bool = True) -> None:
        self.refuse_from = refuse_from
        self.unlocks = unlocks
        self.asked: list[tuple[int, int]] = []
        self.locked: dict[int, int] = {}

    def register(self, address: int, num_bytes: int) -> bool:
        self.asked.append((address, num_bytes))
        if self.refuse_from is not None and len(self.asked) > self.refuse_from:
            return False
        self.locked[address] = num_bytes
        return True

    def unregister(self, address: int) -> bool:
        del self.locked[address]
        return self.unlocks
