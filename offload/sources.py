"""Which bytes of which checkpoint file a weight was loaded from, so that they can be read again.

Loaded weights are often views of a private mapping of a safetensors file. It knows files and
addresses, nothing of units or of the card.
"""

import ctypes
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

import torch

from offload.errors import StateError

PROCESS = Path("/proc/self")  # only Linux tells; elsewhere nothing has a source
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ (\d+)\s+(/.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file as it was when weights were loaded from it."""

    path: str
    inode: int
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> Self | None:
        """The file as it is now; None where there is no regular one."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        return cls._of(path, status) if stat.S_ISREG(status.st_mode) else None

    def matches(self, descriptor: int) -> bool:
        """Whether this open file is still the one that weights were loaded from."""
        return self == self._of(self.path, os.fstat(descriptor))

    @classmethod
    def _of(cls, path: str, status: os.stat_result) -> Self:
        return cls(
            path=path,
            inode=status.st_ino,
            num_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Where the bytes of one span stand in a file."""

    source: Source
    first: int  # byte offset in the file
    num_bytes: int
    pristine: bool  # False: pages of the mapping were written to, so the file may say otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapping:
    start: int
    end: int
    first: int  # byte offset in the file of ``start``
    source: Source
    pristine: bool

    def joined(self, other: "_Mapping") -> "_Mapping | None":
        """Both as one, where one file goes on without a gap."""
        follows = other.start == self.end and other.first == self.first + self.end - self.start
        if not follows or other.source != self.source:
            return None
        return replace(self, end=other.end, pristine=self.pristine and other.pristine)


class Mappings:
    """The safetensors files that this process has mapped, as of one moment."""

    def __init__(self, mappings: Iterable[_Mapping]) -> None:
        self._mappings: list[_Mapping] = []
        for mapping in sorted(mappings, key=lambda mapping: mapping.start):
            joined = self._mappings[-1].joined(mapping) if self._mappings else None
            if joined is not None:
                self._mappings[-1] = joined
            else:
                self._mappings.append(mapping)
        self._starts = [mapping.start for mapping in self._mappings]

    @classmethod
    def read(cls) -> "Mappings":
        """From the kernel, which also tells which mappings were written to."""
        try:
            if not any(_parsed((PROCESS / "maps").read_text())):
                return cls([])  # the usual case of weights made in memory: the cheap file tells
            return cls(_parsed((PROCESS / "smaps").read_text()))
        except (OSError, UnicodeDecodeError):
            return cls([])

    def find(self, address: int, num_bytes: int) -> FileRange | None:
        """Where these bytes of our memory come from; None where no one file holds them all."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        mapping = self._mappings[at]
        first = mapping.first + address - mapping.start
        if address + num_bytes > mapping.end or first + num_bytes > mapping.source.num_bytes:
            return None
        return FileRange(
            source=mapping.source, first=first, num_bytes=num_bytes, pristine=mapping.pristine
        )


class OpenFiles:
    """Reads ranges of files; each file is checked when it is opened and again at the end.

    Opened ones are closed by ``with``. StateError names a file that changed or is gone.
    """

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._descriptors: dict[Source, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        self._descriptors.clear()

    def open(self, source: Source) -> None:
        if source in self._descriptors:
            return
        try:
            descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _gone(source, error.strerror or str(error)) from None
        self._closing.callback(os.close, descriptor)
        if not source.matches(descriptor):
            raise _gone(source, "it was changed or replaced")
        self._descriptors[source] = descriptor

    def read(self, where: FileRange, start: int, buffer: torch.Tensor) -> None:
        """Fill a host buffer (uint8) with the bytes of a range from ``start`` on."""
        self.open(where.source)
        descriptor, total = self._descriptors[where.source], buffer.numel()
        memory = memoryview((ctypes.c_char * total).from_address(buffer.data_ptr())).cast("B")
        done = 0
        while done < total:
            count = os.preadv(descriptor, [memory[done:]], where.first + start + done)
            if count == 0:
                raise _gone(where.source, "it is shorter than it was")
            done += count

    def check(self) -> None:
        """Nobody wrote to a file while it was read, as far as its size and time tell."""
        for source, descriptor in self._descriptors.items():
            if not source.matches(descriptor):
                raise _gone(source, "it was changed while it was read")


def _gone(source: Source, found: str) -> StateError:
    return StateError(
        f"weights were dropped because {source.path} holds them, but {found}: they cannot be had "
        "back. Restart the replica (or load the model again); while one sleeps, leave its "
        "checkpoint alone"
    )


def _parsed(text: str) -> Iterable[_Mapping]:
    """One block per mapping: a line with addresses and path, then lines with its pages."""
    known: dict[str, Source | None] = {}  # by path
    found: re.Match[str] | None = None
    written_kib = 0
    for line in [*text.splitlines(), "0-0 ---p 0 0:0 0 /"]:
        if (head := _MAPPING.match(line)) is None:
            if line.startswith(("Anonymous:", "Swap:")):
                written_kib += int(line.split()[1])
            elif not line[:1].isupper():  # the head of a mapping of no file
                yield from _mapping(found, written_kib, known)
                found, written_kib = None, 0
            continue
        yield from _mapping(found, written_kib, known)
        found, written_kib = head, 0


def _mapping(
    head: re.Match[str] | None, written_kib: int, known: dict[str, Source | None]
) -> Iterable[_Mapping]:
    if head is None:
        return
    start, end, first, inode, path = head.groups()
    if path not in known:
        file = Source.of(path)
        known[path] = file if file is not None and _is_safetensors(file) else None
    source = known[path]
    if source is not None and source.inode == int(inode):  # else another one took its name
        yield _Mapping(
            start=int(start, 16),
            end=int(end, 16),
            first=int(first, 16),
            source=source,
            pristine=written_kib == 0,
        )


@lru_cache(maxsize=1024)  # a process maps some hundred libraries, and each attach asks again
def _is_safetensors(source: Source) -> bool:
    """By its first bytes, since a hub's cache names files by their hash."""
    try:
        with open(source.path, "rb") as file:
            head = file.read(9)
    except OSError:
        return False
    length = int.from_bytes(head[:8], "little")
    return head[8:] == b"{" and length <= min(MAX_HEADER_BYTES, source.num_bytes - 8)
