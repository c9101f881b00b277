"""What is known of every replica, shared by the router that learns it and the driver that tells it.

Lives in a module of its own: the router class travels by value, this registry must not. Replicas
that run are read from the router's own view, so that asking costs no call; replicas that start
report themselves.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from deployments.errors import OUTCOMES
from deployments.forecast import Forecast
from deployments.latency import Latency, merged
from deployments.line import Line
from deployments.messages import ReplicaState, State
from deployments.pace import Shape
from deployments.rank import Candidate

START_REPORT_LIFE_S = 30.0  # a starting replica that says nothing for so long is gone
COUNTS = (*OUTCOMES, "retried", "out_of_memory")


class ReplicaId(Protocol):
    """Ray's name of a replica."""

    @property
    def unique_id(self) -> str: ...


class Replica(Protocol):
    """What a router holds of one running replica."""

    @property
    def replica_id(self) -> Any: ...
    @property
    def replica_metadata(self) -> Mapping[str, Any]: ...
    @property
    def routing_stats(self) -> Mapping[str, Any]: ...


class Fleet:
    """The replicas of one application, and the sum of those that are gone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.RLock()  # the router's loop writes, the driver's loop reads
        self._running: Sequence[Replica] = ()
        self._starting: dict[str, tuple[float, ReplicaState]] = {}
        self._read: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._last: dict[str, ReplicaState] = {}  # what those said
        self._lost: dict[str, str] = {}  # replica -> why no job goes there any more
        self._gone = Totals()
        self.forecast = Forecast()
        self.line = Line(self.candidates, now, self._lock)

    def set_running(self, replicas: Sequence[Replica]) -> None:
        """The router's view changed; whoever left it is counted from now on as gone."""
        present = {replica.replica_id.unique_id for replica in replicas}
        with self._lock:
            for id_ in set(self._last) - present:
                self._gone = self._gone.plus(self._last.pop(id_))
                self._read.pop(id_, None)
                self._lost.pop(id_, None)
                self.forecast.forget(id_)
            for id_ in present:
                self._starting.pop(id_, None)
            self._running = tuple(replicas)
            self.line.deal()

    def lose(self, replica_id: str, why: str) -> None:
        """No job goes there any more, before the replica or Ray says so."""
        with self._lock:
            if replica_id in self._last:
                self._lost[replica_id] = why
            self.line.deal()

    def job_ended(self, replica_id: str, shape: Shape, seconds: float) -> None:
        """A job was served there, in so many seconds on the card."""
        with self._lock:
            state = self._last.get(replica_id)
            if state is not None:
                self.forecast.job_ended(state, shape, seconds)

    def report(self, state: Mapping[str, Any]) -> None:
        """A replica that starts says where it stands."""
        read = ReplicaState.from_dict(state)
        with self._lock:
            if all(replica.replica_id.unique_id != read.id for replica in self._running):
                self._starting[read.id] = (self._now(), read)

    def states(self) -> tuple[ReplicaState, ...]:
        """Everyone, those that run first. Of two on one card the later one is unhealthy."""
        oldest = self._now() - START_REPORT_LIFE_S
        with self._lock:
            queues = self.line.queues()
            running = [replace(one, queue=queues.get(one.id, 0)) for one in self._said()]
            starting = [state for since, state in self._starting.values() if since >= oldest]
        return without_shared_cards((*running, *starting))

    def totals(self) -> "Totals":
        """Sums over the replicas that are here and those that were."""
        with self._lock:
            total, states = replace(self._gone, waiting=self.line.num_waiting), self.states()
        for state in states:
            total = total.plus(state)
        return total

    def candidates(self) -> list[Candidate]:
        """Those that run, as the ranking sees them."""
        with self._lock:
            return [self.forecast.candidate(state) for state in without_shared_cards(self._said())]

    def _said(self) -> list[ReplicaState]:
        """What each running replica said last."""
        return [self._state_of(replica) for replica in self._running]

    def _state_of(self, replica: Replica) -> ReplicaState:
        said = (replica.replica_metadata, replica.routing_stats)
        id_ = replica.replica_id.unique_id
        if id_ not in self._last or self._read.get(id_) != said:  # read once, asked for often
            self._read[id_], self._last[id_] = said, ReplicaState.from_dict({**said[0], **said[1]})
        state, why = self._last[id_], self._lost.get(id_)
        return state if why is None else replace(state, state=State.UNHEALTHY, detail=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over replicas, and what is known of the fleet as a whole."""

    latency: Latency = field(default_factory=Latency)  # of served jobs
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))  # of jobs
    moved: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # component -> sums
    requests: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    waiting: int = 0  # requests whose turn has not come

    def plus(self, state: ReplicaState) -> "Totals":
        counts = {name: self.counts[name] + getattr(state, name) for name in COUNTS}
        latency = merged([self.latency, Latency.from_dict(state.latency)])
        return replace(self, latency=latency, counts=counts, moved=_sum(self.moved, state.moved))


def _sum(
    left: Mapping[str, Mapping[str, float]], right: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Component by component, sum by sum."""
    names = sorted({*left, *right})
    return {
        name: {
            key: left.get(name, {}).get(key, 0) + right.get(name, {}).get(key, 0)
            for key in {**left.get(name, {}), **right.get(name, {})}
        }
        for name in names
    }


def without_shared_cards(states: Sequence[ReplicaState]) -> tuple[ReplicaState, ...]:
    """A card that two replicas claim belongs to the first: the other one must not draw."""
    owners: dict[str, str] = {}
    checked = []
    for state in states:
        uuid = state.card.uuid
        owner = owners.setdefault(uuid, state.id) if uuid else state.id
        if owner != state.id:
            detail = f"the card {uuid} belongs to replica {owner}; give each replica its own"
            state = replace(state, state=State.UNHEALTHY, detail=detail)
        checked.append(state)
    return tuple(checked)


FLEET = Fleet()
