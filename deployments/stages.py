"""Where a start-up stands: seconds per stage, and one line for whoever waits.

Written by the thread that starts, read by any other. It knows nothing of what is done.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """The start-up's stages, in order."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self.seconds: dict[str, float] = {}
        self.detail = "starting"

    @contextmanager
    def stage(self, name: str, detail: str) -> Iterator[None]:
        """Everything in the block is that stage; a stage entered twice adds up."""
        self.detail = detail
        began = self._now()
        try:
            yield
        finally:
            spent = self._now() - began
            self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 3)

    def tell(self, detail: str) -> None:
        """Where the stage stands, in other words than when it began."""
        self.detail = detail

    def placing(self, component: str, done: int, total: int) -> None:
        """The residency's own progress."""
        self.detail = f"placing {component} {done}/{total}"

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._began

    def summary(self) -> str:
        """``ready in 9.1 s: import 5.2 s, load 2.8 s``."""
        parts = ", ".join(f"{name} {spent:.1f} s" for name, spent in self.seconds.items())
        return f"ready in {self.elapsed_s:.1f} s: {parts}"
