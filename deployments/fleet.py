"""What is known of every replica, shared by the router that learns it and the driver that tells it.

Lives in a module of its own: the router class travels by value, this registry must not. Replicas
that run are read from the router's own view, so that asking costs no call; replicas that start
report themselves.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from deployments.latency import Latency, merged
from deployments.messages import ReplicaState, State

START_REPORT_LIFE_S = 30.0  # a starting replica that says nothing for so long is gone
COUNTS = ("served", "failed", "cancelled", "retried")


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
        self._queue_of: Callable[[Any], int | None] = lambda replica_id: None
        self._starting: dict[str, tuple[float, ReplicaState]] = {}
        self._last: dict[str, ReplicaState] = {}
        self._gone = Totals()

    def set_running(
        self, replicas: Sequence[Replica], queue_of: Callable[[Any], int | None]
    ) -> None:
        """The router's view changed; whoever left it is counted from now on as gone."""
        present = {replica.replica_id.unique_id for replica in replicas}
        with self._lock:
            for id_ in set(self._last) - present:
                self._gone = self._gone.plus(self._last.pop(id_))
            for id_ in present:
                self._starting.pop(id_, None)
            self._queue_of = queue_of
            self._running = tuple(replicas)

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
            running = [self._state_of(replica) for replica in self._running]
            starting = [state for since, state in self._starting.values() if since >= oldest]
        return without_shared_cards((*running, *starting))

    def totals(self) -> "Totals":
        """Sums over the replicas that are here and those that were."""
        with self._lock:
            total, states = self._gone, self.states()
        for state in states:
            total = total.plus(state)
        return total

    def _state_of(self, replica: Replica) -> ReplicaState:
        said = {**replica.replica_metadata, **replica.routing_stats}
        queue = self._queue_of(replica.replica_id) or 0
        state = replace(ReplicaState.from_dict(said), queue=queue)
        self._last[state.id] = state
        return state


class Totals:
    """Sums over replicas; a value."""

    def __init__(
        self, latency: Latency | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        self.latency = latency or Latency()
        self.counts = dict(counts or dict.fromkeys(COUNTS, 0))

    def plus(self, state: ReplicaState) -> "Totals":
        counts = {name: self.counts[name] + getattr(state, name) for name in COUNTS}
        return Totals(merged([self.latency, Latency.from_dict(state.latency)]), counts)


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
