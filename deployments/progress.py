"""One progress bar at a time on the terminal, for whatever runs now.

Knows tqdm and labels; nothing of what the steps are.
"""

import sys
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm


class ProgressBar:
    """A bar that starts anew when its label changes; silent where nobody watches."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._bar: tqdm[None] | None = None
        self._label = ""

    def show(self, label: str, done: int, total: int) -> None:
        """``done`` of ``total`` are behind us; a bar ends when all are, or another label comes."""
        if self._bar is None or label != self._label:
            self.close()
            # disable=None: no bar where the output is a file or a pipe
            self._bar = tqdm(desc=label, total=total, file=self._file, disable=None)
            self._label = label
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()  # what is printed next begins on a line of its own

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
