"""Whose turn it is: one thread owns a residency, and it does one thing at a time."""

import threading
from enum import StrEnum

from offload.errors import StateError


class Doing(StrEnum):
    """What a residency is in the middle of; only from ``IDLE`` may another thing begin."""

    IDLE = "idle"  # permanent units on the card, nothing else
    REQUEST = "request"  # open runs hold memory beside them
    SUSPENDED = "suspended"  # permanent units on the card, modules open to others
    ASLEEP = "asleep"  # nothing on the card
    APPLYING = "applying"  # units leave and come for another plan


_REFUSALS = {
    Doing.REQUEST: "while a request is running: a card runs one at a time",
    Doing.SUSPENDED: "within suspended(): leave it first",
    Doing.ASLEEP: "while the residency is asleep: call wake() first",
    Doing.APPLYING: "while another plan is applied: wait until apply() returns",
}


class Turn:
    """Belongs to the thread that made it."""

    def __init__(self) -> None:
        self.doing = Doing.IDLE
        self._thread = threading.get_ident()

    def check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise StateError(
                f"thread {threading.current_thread().name} uses a residency that another thread "
                "attached: stream and grad mode are per thread; attach, call and detach on one"
            )

    def check_awake(self, verb: str) -> None:
        self.check_thread()
        if self.doing is Doing.ASLEEP:
            raise StateError(f"cannot {verb} {_REFUSALS[self.doing]}")

    def check(self, verb: str) -> None:
        """StateError unless this may begin now."""
        self.check_thread()
        if self.doing is not Doing.IDLE:
            raise StateError(f"cannot {verb} {_REFUSALS[self.doing]}")
