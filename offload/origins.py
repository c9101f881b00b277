"""Which permanent units of a component can be read from the checkpoint again, and which may differ.

Permanent units have no host copy: sleep gives their memory back, and drops what a file still holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from offload.errors import StateError
from offload.parts import file_parts
from offload.sources import FileRange, Mappings, OpenFiles
from offload.unit import Unit

COMPARED_BYTES = 64 << 20  # at a time


@dataclass(slots=True)
class Origins:
    """One component's. A unit without an entry has no file, or only for a part of its bytes."""

    ranges: dict[Unit, tuple[FileRange, ...]] = field(default_factory=dict)
    doubted: set[Unit] = field(default_factory=set)  # may have been changed since it was loaded

    def note(self, unit: Unit, mappings: Mappings) -> None:
        """Remember where a loaded unit's bytes come from, before they are placed."""
        ranges = []
        for span, source in unit.loaded_bytes():
            on_host = source.device.type == "cpu"
            found = mappings.find(source.data_ptr(), span.num_bytes) if on_host else None
            if found is None:
                return
            ranges.append(found)
        self.ranges[unit] = tuple(ranges)
        if not all(where.pristine for where in ranges):
            self.doubted.add(unit)

    def still_hold(self, unit: Unit, files: OpenFiles) -> bool:
        """Whether the files can give back what is on the card now; doubts are looked into."""
        ranges = self.ranges.get(unit)
        if ranges is None:
            return False
        try:
            for where in ranges:
                files.open(where.source)
            if unit in self.doubted and not _equal(unit, ranges, files):
                return False
        except StateError:  # the file was changed or is gone: what is on the card is all there is
            return False
        self.doubted.discard(unit)
        return True

    def doubt(self, units: Iterable[Unit]) -> None:
        """Somebody may have changed these."""
        self.doubted.update(unit for unit in units if unit in self.ranges)


def _equal(unit: Unit, ranges: tuple[FileRange, ...], files: OpenFiles) -> bool:
    assert unit.memory is not None
    for span, read in file_parts(unit, ranges, files):
        ours = unit.memory[span.offset : span.offset + span.num_bytes]
        for start in range(0, span.num_bytes, COMPARED_BYTES):
            piece = ours[start : start + COMPARED_BYTES].cpu()
            theirs = torch.empty(piece.numel(), dtype=torch.uint8)
            read(theirs, start)
            if not torch.equal(piece, theirs):
                return False
    return True
