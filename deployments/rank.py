"""Which replica should take a request: pure, from what the replicas last said of themselves.

It knows nothing of Ray. Equal inputs give equal rankings, and a ranking is never empty as long as
there is a replica.
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
    """Ids in ranks, best first: able before unable, then free before busy, then soonest done.

    A pinned request has the one replica it names, or an empty ranking when that is gone.
    """
    if pin is not None:
        return [[c.id] for c in candidates if c.id == pin]
    ordered = sorted(candidates, key=_order)
    return [[c.id for c in equals] for _, equals in groupby(ordered, key=_order)]


def _order(candidate: Candidate) -> tuple[bool, bool, float, int]:
    return (
        candidate.state not in ABLE,
        candidate.queue > 0,
        candidate.finish_s,
        candidate.queue,
    )
