"""Ray Serve's router for the replicas: keeps the fleet's registry current and follows ``rank``.

Decides nothing itself. Its class travels by value, so all that others read lives elsewhere.
"""

from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from deployments import fleet  # the module: a global that is an object would travel by value
from deployments.errors import ReplicaNotFound
from deployments.latency import Latency
from deployments.messages import ReplicaState
from deployments.rank import Candidate, rank


class FleetRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's classes carry no types
    """Sends a job to the replica that will be done first, or to the one it is pinned to."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        fleet.FLEET.set_running(replicas, self.replica_queue_len_cache.get)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks, best first; a request whose replica is gone fails at once."""
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        pin = None
        if pending_request is not None:
            # Without a pause between tries the routing loop spins.
            pending_request.routing_context.should_backoff = True
            pin = pending_request.metadata.session_id or None
        states = [state for state in fleet.FLEET.states() if state.id in by_id]
        ranks = rank([candidate_of(state) for state in states], pin)
        if not ranks and pin is not None:
            _fail(pending_request, pin)
        return [[by_id[id_] for id_ in ids] for ids in ranks] or [list(candidate_replicas)]


def candidate_of(state: ReplicaState) -> Candidate:
    job_s = Latency.from_dict(state.latency).mean_s
    return Candidate(id=state.id, state=state.state, queue=state.queue, job_s=job_s)


def _fail(pending_request: Any, pin: str) -> None:
    if not pending_request.future.done():
        pending_request.future.set_exception(ReplicaNotFound(f"the replica {pin!r} does not exist"))
