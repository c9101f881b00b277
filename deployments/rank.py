"""Which replica should take a request: pure, from what the replicas last said of themselves.

It knows nothing of Ray. A ranking is never empty as long as there is a replica.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from deployments.messages import State

ABLE = (State.READY, State.BUSY, State.SLEEPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One replica, as the router sees it."""

    id: str
    state: State
    queue: int = 0  # jobs that it runs or that wait for it
    job_s: float = 0.0  # mean seconds of a job on its card, 0 before the first

    @property
    def finish_s(self) -> float:
        """When one more job would end; a card that was never tried is tried first."""
        return (self.queue + 1) * self.job_s


def rank(candidates: Sequence[Candidate], pin: str | None = None) -> list[list[str]]:
    """Ids in ranks, best first: free before busy, awake before asleep, then soonest done.

    A sleeping replica takes a request only when no awake one is free: waking takes seconds.
    Replicas that cannot draw are left out as long as another can, even if that one is busy. A
    pinned request has the one replica it names, or an empty ranking when that is gone.
    """
    if pin is not None:
        return [[c.id] for c in candidates if c.id == pin]
    able = [c for c in candidates if c.state in ABLE]
    ordered = sorted(able or candidates, key=_order)
    return [[c.id for c in equals] for _, equals in groupby(ordered, key=_order)]


def _order(candidate: Candidate) -> tuple[bool, bool, float, int]:
    asleep = candidate.state is State.SLEEPING
    return candidate.queue > 0, asleep, candidate.finish_s, candidate.queue
