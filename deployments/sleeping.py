"""When a replica falls asleep: once nothing was asked of it for so long.

It measures idleness only; what sleeping means, and on which thread, is the caller's.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IdleClock:
    """Calls ``act`` on a thread of its own after ``after_s`` idle seconds; never without those."""

    def __init__(self, after_s: float | None, act: Callable[[], object]) -> None:
        self._after_s = after_s
        self._act = act
        self._lock = threading.Lock()
        self._num_busy = 0
        self._timer: threading.Timer | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is asked of the replica, or waits for its turn, now."""
        return self._num_busy == 0

    def start(self) -> None:
        """Begin to measure, unless something goes on already."""
        with self._lock:
            if self.idle:
                self._restart()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Something is asked; idleness begins again when the last of these ends."""
        with self._lock:
            self._num_busy += 1
            self._stop()
        try:
            yield
        finally:
            with self._lock:
                self._num_busy -= 1
                if self.idle:
                    self._restart()

    def _restart(self) -> None:
        self._stop()
        if self._after_s is not None:
            self._timer = threading.Timer(self._after_s, self._act)
            self._timer.daemon = True  # it holds up no exit
            self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
