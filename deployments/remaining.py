"""How long a job will still take, from its own steps so far and from how the last one ended.

Knows a clock and step numbers; nothing of what a step is.
"""

import time
from collections.abc import Callable


class Remaining:
    """The jobs of one replica, one after the other. Written and read by one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._step, self._step_s = 0, 0.0  # the latest one, and when it was done
        self._first, self._first_s = 0, 0.0  # where the job's pace is counted from
        self._ending_s = 0.0  # from the last step of the job before to its pictures

    def begin(self) -> None:
        self._step = self._first = 0
        self._step_s = self._first_s = self._now()

    def left_s(self, step: int, of: int) -> float:
        """Seconds until the pictures are there; ``step`` of ``of`` steps are done."""
        now_s = self._now()
        if step <= self._step:  # the job began anew, after out of memory
            self._first, self._first_s = 0, self._step_s
        each_s = (now_s - self._first_s) / (step - self._first)
        if self._first == 0:  # the prompt came before it: the pace is that of later steps
            self._first, self._first_s = step, now_s
        self._step, self._step_s = step, now_s
        return each_s * (of - step) + self._ending_s

    def end(self) -> None:
        """The pictures are there."""
        self._ending_s = self._now() - self._step_s
