"""Which replica should take a request: pure, from what is known of the replicas.

It knows nothing of Ray. The router follows it for real requests and the simulation for invented
ones.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from deployments.messages import State
from deployments.pace import Shape, Speed

ABLE = (State.READY, State.BUSY, State.SLEEPING)
UNKNOWN_S = 1.0  # for a job of which no card knows yet how long it takes
# A second of waiting weighs as much as this many of drawing: whoever waits for a fast card makes
# those wait who come later. Below 3 all wait for fast cards while slow ones idle, above 8 slow
# cards take too much; tried in docs/operations.md.
WAITING = 5.0
LAST_RESORT_S = 1e9  # on top for a replica where the request failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One replica, as far as a request's end depends on it."""

    id: str
    state: State
    speed: Speed | None = None  # None: nothing was measured or predicted
    queue: int = 0  # jobs that it runs or that wait for it
    queue_s: float = 0.0  # until all of those have ended
    wake_s: float = 0.0  # before a job, where it sleeps
    max_pixels: int | None = None  # None: as much as the configuration allows

    def holds(self, shape: Shape) -> bool:
        return self.max_pixels is None or shape.pixels <= self.max_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What of a request decides who should take it."""

    shape: Shape
    pin: str | None = None  # the one replica that it asks for
    avoid: frozenset[str] = frozenset()  # where it was tried and failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One replica for one request."""

    id: str
    wait_s: float  # until the jobs before it have ended
    job_s: float  # what it takes then, waking included


def rank(replicas: Sequence[Candidate], request: Request) -> list[list[str]]:
    """Ids in ranks, the one that is expected to finish first in the first; equals share a rank.

    Waiting weighs more than drawing (``WAITING``). Left out are replicas that cannot draw now, or
    not as large a picture; one where the request failed comes last. A sleeping replica is woken
    only where that pays. The ranking is empty where nobody can take the request, that of a pinned
    one where its replica cannot.
    """
    lines = _Lines(replicas)
    costs = lines.costs_s(request)
    able = [index for index, cost_s in enumerate(costs) if cost_s < math.inf]

    def order(index: int) -> tuple[float, bool, int, bool]:
        return costs[index], *lines.tie(index)

    groups = groupby(sorted(able, key=order), order)
    return [[lines.ids[index] for index in equals] for _, equals in groups]


def deal(replicas: Sequence[Candidate], requests: Sequence[Request]) -> Iterator[Place | None]:
    """A place for each request in turn, each seeing the jobs of those before it in the lines."""
    lines = _Lines(replicas)
    for request in requests:
        yield lines.take(request)


class _Lines:
    """The lines before the replicas that can draw, as columns: hundreds are dealt in a moment."""

    def __init__(self, replicas: Sequence[Candidate]) -> None:
        self._able = [one for one in replicas if one.state in ABLE]
        self.ids = [one.id for one in self._able]
        self._waits_s = [one.queue_s for one in self._able]
        self._queues = [one.queue for one in self._able]
        asleep = [one.state is State.SLEEPING and not one.queue for one in self._able]
        self._wakes_s = [
            one.wake_s if a else 0.0 for one, a in zip(self._able, asleep, strict=True)
        ]
        self._jobs_s: dict[Shape, list[float]] = {}

    def tie(self, index: int) -> tuple[bool, int, bool]:
        """Of equals first the awake, then the shorter line, then who still has to be tried."""
        one = self._able[index]
        return one.state is State.SLEEPING, self._queues[index], one.speed is not None

    def costs_s(self, request: Request) -> list[float]:
        """By replica; infinite where it cannot take the request."""
        jobs_s = self._jobs_of(request.shape)
        columns = zip(self._waits_s, jobs_s, self._wakes_s, strict=True)
        costs = [WAITING * wait_s + job_s + wake_s for wait_s, job_s, wake_s in columns]
        if request.pin is not None:
            pairs = zip(self.ids, costs, strict=True)
            costs = [cost_s if id_ == request.pin else math.inf for id_, cost_s in pairs]
        if request.avoid:
            late = [LAST_RESORT_S if id_ in request.avoid else 0.0 for id_ in self.ids]
            costs = [cost_s + late_s for cost_s, late_s in zip(costs, late, strict=True)]
        return costs

    def take(self, request: Request) -> Place | None:
        """The best place, taken: whoever is dealt next finds a longer line there."""
        costs = self.costs_s(request)
        least_s = min(costs, default=math.inf)
        if least_s == math.inf:
            return None
        at = costs.index(least_s)
        if costs.count(least_s) > 1:
            equals = [index for index, cost_s in enumerate(costs) if cost_s == least_s]
            at = min(equals, key=self.tie)
        job_s = self._jobs_of(request.shape)[at] + self._wakes_s[at]
        place = Place(id=self.ids[at], wait_s=self._waits_s[at], job_s=job_s)
        self._waits_s[at] += job_s
        self._queues[at] += 1
        self._wakes_s[at] = 0.0  # it is awake for the next one
        return place

    def _jobs_of(self, shape: Shape) -> list[float]:
        """Seconds of such a job by replica; one in doubt is as fast as the fastest."""
        if shape not in self._jobs_s:
            speeds = [one.speed for one in self._able if one.speed is not None]
            unknown_s = min((speed.seconds_of(shape) for speed in speeds), default=UNKNOWN_S)
            self._jobs_s[shape] = [
                math.inf
                if not one.holds(shape)
                else unknown_s
                if one.speed is None
                else one.speed.seconds_of(shape)
                for one in self._able
            ]
        return self._jobs_s[shape]
