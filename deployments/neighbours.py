"""The replicas on this node, of every application of this user, and what each says of itself.

Each holds a lock on a file of its own for the life of its process; the system lets go of it
however the process ends, so that no cluster is asked and a killed replica no longer counts. Those
that see one temporary folder are on one node. It knows nothing of what the bytes are for.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

GATE = "node.lock"  # held while somebody looks or writes
SUFFIX = ".replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What one replica says of itself."""

    name: str
    pid: int
    loading_bytes: int = 0  # host memory that it may take while it loads; 0: it does not load
    host_bytes: int = 0  # its host copies
    pinned_bytes: int = 0  # those of them that it has page-locked, or may

    def __str__(self) -> str:
        return f"replica {self.name} (process {self.pid})"


class Node:
    """This process among its neighbours, from its construction to its end."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"tenure-node-{os.getuid()}"
        self.own = Neighbour(name=name, pid=os.getpid())
        with self._gate():
            self._appear()
            self._write()

    @contextmanager
    def looking(self) -> Iterator[list[Neighbour]]:
        """The others that live; nobody else looks or writes until the end of the block."""
        with self._gate():
            yield list(self._others())

    def say(self, **changed_bytes: int) -> None:
        """Change what this process says of itself, by field. Within ``looking`` only."""
        self.own = Neighbour(**{**asdict(self.own), **changed_bytes})
        self._write()

    def leave(self) -> None:
        """As the end of the process does."""
        with self._gate():
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)

    def _appear(self) -> None:
        self._descriptor, file = tempfile.mkstemp(suffix=SUFFIX, dir=self._folder)
        self._file = Path(file)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    @contextmanager
    def _gate(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        if not self._file.exists():  # whoever cleans temporary folders took it
            os.close(self._descriptor)
            self._appear()
        text = json.dumps(asdict(self.own)).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def _others(self) -> Iterator[Neighbour]:
        for file in sorted(self._folder.glob(f"*{SUFFIX}")):
            if file != self._file and _is_held(file):
                with suppress(ValueError, TypeError):  # written by another version
                    yield Neighbour(**json.loads(file.read_text()))


def _is_held(file: Path) -> bool:
    """Whether its process lives; what a dead one left is deleted."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        file.unlink()
        return False
    finally:
        os.close(descriptor)


_joined: list[Node] = []


def join_node(name: str) -> Node:
    """This process' own place, taken at the first call and held until it ends."""
    if not _joined:
        _joined.append(Node(name))
    return _joined[0]
