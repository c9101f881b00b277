"""A unit's bytes, span by span, from wherever they are: as loaded, in memory, or in a file.

It reads them into host buffers of any size; it decides nothing and keeps nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from offload.sources import FileRange, OpenFiles
from offload.unit import Span, Unit

Reader = Callable[[torch.Tensor, int], None]  # fills a host buffer with a span's bytes from there
Part = tuple[Span, Reader]


def loaded_parts(unit: Unit) -> Iterator[Part]:
    """As the checkpoint left them."""
    for span, source in unit.loaded_bytes():
        yield span, partial(_read_memory, source)


def memory_parts(unit: Unit, memory: torch.Tensor) -> Iterator[Part]:
    """From a place that holds the whole unit: on the card, or a host copy."""
    for span in unit.spans:
        yield span, partial(_read_memory, memory[span.offset : span.offset + span.num_bytes])


def file_parts(unit: Unit, ranges: Iterable[FileRange], files: OpenFiles) -> Iterator[Part]:
    """From the files that the unit was loaded from; one range for each span."""
    for span, where in zip(unit.spans, ranges, strict=True):
        yield span, partial(_read_file, files, where)


def _read_memory(source: torch.Tensor, buffer: torch.Tensor, start: int) -> None:
    buffer.copy_(source[start : start + buffer.numel()])


def _read_file(files: OpenFiles, where: FileRange, buffer: torch.Tensor, start: int) -> None:
    files.read(where, start, buffer)
