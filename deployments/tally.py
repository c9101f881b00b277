"""What one replica's jobs came to: how they ended, how long they took, what they moved.

It knows outcomes and offload's usage as plain numbers; nothing of engines or metrics.
"""

from collections.abc import Mapping
from typing import Any

from deployments.errors import OUTCOMES
from deployments.latency import Latency

COUNTS = (*OUTCOMES, "retried")
MOVED = ("copied_bytes", "stall_s", "arming_s", "wasted_bytes", "on_the_spot", "prefetched")


class Tally:
    """Sums since the replica started; written by its owner thread, read by any other."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.latency = Latency()  # of served jobs
        self.moved: dict[str, dict[str, float]] = {}  # component -> sums over served jobs

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def served(self, seconds: float, usage: Mapping[str, Any]) -> None:
        """A job ended in pictures; ``usage`` is what its residency cost."""
        self.count("served")
        self.latency = self.latency.with_one(seconds)
        for name, used in usage.get("components", {}).items():
            sums = self.moved.get(name, dict.fromkeys(MOVED, 0))
            # A new dict each time: the one before may be read by another thread just now.
            self.moved = {**self.moved, name: {key: sums[key] + used[key] for key in MOVED}}
