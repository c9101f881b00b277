"""Ray Serve's router for the replicas: keeps the fleet's registry current, sends jobs in turn.

Who is next and where is decided by the line in the registry (``deployments.line``). The class
travels by value, so all that others read lives elsewhere.
"""

import asyncio
from contextlib import suppress
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from deployments import fleet  # the module: a global that is an object would travel by value
from deployments.errors import ReplicaNotFound

NUM_ROUTED = 10_000  # requests that may wait for a turn at once; none keeps another from its own


class FleetRouter(RequestRouter):  # type: ignore[misc]  # Ray's classes carry no types
    """Sends a job where the line says, or a call to the replica that it is for."""

    @property
    def max_num_routing_tasks(self) -> int:
        return NUM_ROUTED

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: Any = None
    ) -> None:
        """The request that was routed has its replica, and no other one.

        Ray's mixin gives it to the oldest request, whichever replica that one is meant for. Ray's
        base matches by an id that all calls from one request share: of two, one would hang.
        """
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                self._record_queue_wait_time(pending)
                self._remove_pending_request_from_indices(pending)
                pending.future.set_result(replica)
                return

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        fleet.FLEET.set_running(replicas)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replica whose turn it is, alone; nothing while the request has to wait."""
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if pending_request is None:
            return [list(candidate_replicas)]
        # Without a pause between tries the routing loop spins.
        pending_request.routing_context.should_backoff = True
        job_id = job_id_of(pending_request)
        try:
            if job_id is None or not fleet.FLEET.line.knows(job_id):
                return [_pinned(pending_request.metadata.session_id, by_id)]
            id_ = await _turn(job_id)
        except ReplicaNotFound as error:
            if not pending_request.future.done():
                pending_request.future.set_exception(error)
            return [list(candidate_replicas)]  # one more look at the request, which has ended
        if id_ is None:
            pending_request.routing_context.should_backoff = False  # it has waited here
        # A replica that Ray has just lost is missing: asked again, the line deals anew.
        return [[by_id[id_]]] if id_ in by_id else []


def job_id_of(pending_request: Any) -> str | None:
    """The id of the job that a call carries; None for calls of another kind."""
    job = pending_request.args[0] if pending_request.args else None
    return job.get("request_id") if isinstance(job, dict) else None


async def _turn(job_id: str) -> str | None:
    """The job's replica; None where its turn did not come for a while."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def on_turn() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(news.set)

    id_ = fleet.FLEET.line.take(job_id, on_turn)
    if id_ is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(fleet.FLEET.line.patience_s):
                await news.wait()
        id_ = fleet.FLEET.line.take(job_id, on_turn)
    return id_


def _pinned(pin: str, by_id: dict[str, RunningReplica]) -> list[RunningReplica]:
    if pin and pin not in by_id:
        raise ReplicaNotFound(f"the replica {pin!r} does not exist")
    return [by_id[pin]] if pin else list(by_id.values())
