"""Which simulated card a replica plays: a number that no other living replica on this node holds.

Serve's ranks will not do: when replicas are replaced one by one, it hands the same rank to two of
them. A seat is an advisory lock on a file; the system lets go of it when the process ends, however
it ends, so a replica that comes back after a kill finds its card again.
"""

import fcntl
import os
import tempfile
import time
from pathlib import Path

PATIENCE_S = 60.0  # for a replica that is being replaced to end
POLL_S = 0.1
MOST_SEATS = 4096

_held: list[int] = []  # file descriptors; open for the life of the process


def take_seat(
    table: str,
    wanted: int,
    num_seats: int,
    *,
    patience_s: float = PATIENCE_S,
    folder: Path | None = None,
) -> int:
    """Take ``wanted`` if it is free, else another of ``num_seats``, and keep it until the end.

    ``table`` names who shares the numbers: one application of one cluster. While all are taken it
    waits, since a replica that was replaced may still be ending; then it takes a number above.
    """
    place = folder or Path(tempfile.gettempdir()) / f"tenure-seats-{os.getuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline_s = time.monotonic() + patience_s
    while True:
        numbers: list[int] = [wanted % num_seats, *range(num_seats)]
        if time.monotonic() >= deadline_s:
            numbers += range(num_seats, MOST_SEATS)
        for number in numbers:
            if _lock(place / f"{table}-{number}.lock"):
                return number
        time.sleep(POLL_S)


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True
