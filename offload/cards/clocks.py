"""The two clocks of a simulated card: the wall's, and one that moves only when it is told to."""

import time
from typing import Protocol


class SimulationClock(Protocol):
    """Seconds since some fixed moment."""

    def now(self) -> float: ...

    def wait_until(self, deadline_s: float) -> float:
        """Let the time come; returns the seconds that were waited."""

    def advance(self, seconds: float) -> None:
        """Time that a computation takes."""


class WallClock:
    """Real time: a wait sleeps, a computation takes what it takes."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, deadline_s: float) -> float:
        began_s = self.now()
        if deadline_s <= began_s:
            return 0.0
        time.sleep(deadline_s - began_s)
        return self.now() - began_s

    def advance(self, seconds: float) -> None:
        """A real computation has already passed on this clock."""


class VirtualClock:
    """Exact and instant: the same calls give the same times on any machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait_until(self, deadline_s: float) -> float:
        waited_s = max(0.0, deadline_s - self._now_s)
        self._now_s = max(self._now_s, deadline_s)
        return waited_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
