"""How long jobs took: a histogram that merges, so that a fleet's total is the sum of its replicas.

It knows nothing of clocks, replicas or Prometheus.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

# Upper bounds of the buckets, a quarter apart: any quantile is right within that.
BOUNDS_S = tuple(round(0.02 * 1.25**i, 4) for i in range(50))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Durations in buckets; the last count is of everything above the last bound."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0

    def with_one(self, seconds: float) -> Self:
        """This histogram and one more duration."""
        at = bisect_left(BOUNDS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return type(self)(counts=counts, sum_s=self.sum_s + seconds)

    def quantile_s(self, quantile: float) -> float:
        """The duration below which that share of jobs ended, linear in its bucket; 0: no job."""
        wanted = quantile * self.count
        below = 0
        for at, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low, high = bucket_s(at)
                return low + (high - low) * (wanted - below) / count
            below += count
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "p50_s": round(self.quantile_s(0.50), 3),
            "p95_s": round(self.quantile_s(0.95), 3),
            "sum_s": round(self.sum_s, 3),
            "counts": list(self.counts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` wrote; an empty mapping is no job yet."""
        if not values:
            return cls()
        return cls(counts=tuple(values["counts"]), sum_s=values["sum_s"])


def bucket_s(at: int) -> tuple[float, float]:
    """Lower and upper bound of a bucket; what lies above the last bound counts as that bound."""
    low = BOUNDS_S[at - 1] if at else 0.0
    return low, BOUNDS_S[min(at, len(BOUNDS_S) - 1)]


def merged(histograms: Iterable[Latency]) -> Latency:
    """All of these durations in one histogram."""
    parts = list(histograms)
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    return (
        Latency(counts=counts, sum_s=math.fsum(part.sum_s for part in parts))
        if parts
        else Latency()
    )
