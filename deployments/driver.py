"""The deployment in front: HTTP and Python callers on one side, the fleet of replicas on the other.

It imports no torch and owns no card. It keeps the jobs on their way, so that they can be stopped,
timed out and, where a replica died under them, sent once more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from deployments.accounts import AccountedRequests, Accounts
from deployments.api import create_api
from deployments.backend import Readiness
from deployments.calls import read_call
from deployments.config import AppConfig
from deployments.dispatch import send, tell
from deployments.errors import JobCancelled, JobError, ReplicaNotFound, built_in
from deployments.fleet import FLEET, Totals
from deployments.following import Feed, OnEvent, follow, unheard
from deployments.messages import GenerateJob, GenerateResult, ReplicaState
from deployments.metrics import Exposition
from deployments.openness import warn_if_open
from deployments.pace import Shape
from deployments.rank import ABLE
from deployments.status_api import fleet_json

logger = logging.getLogger("ray.serve")


class Driver:
    """An ImageBackend over Serve's handle to the replicas."""

    def __init__(self, config: AppConfig, replicas: DeploymentHandle[Any]) -> None:
        self._config = config
        # Asking for options makes Serve follow the replicas from now on, not from the first job.
        self._replicas = replicas.options(stream=True)
        self._jobs: dict[str, asyncio.Task[GenerateResult]] = {}
        self._feeds: dict[str, Feed] = {}
        self._exposition = Exposition(self.states, self.totals)
        self._accounts = Accounts(self._exposition.request_ended)
        width, height = config.defaults.width_height
        FLEET.forecast.expect(Shape(pixels=width * height, steps=config.defaults.steps))
        warn_if_open(config.server)

    def __serve_build_asgi_app__(self) -> FastAPI:
        api = create_api(self._config, self, echo_request_id=False)  # Serve's proxy returns it
        api.add_middleware(AccountedRequests, accounts=self._accounts)
        return api

    # --- by handle, from any Ray program -----------------------------------------------------
    async def generate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Plain dicts both ways, with the fields of the HTTP API; built-in exceptions only."""
        try:
            with self._accounts.reading():
                call = await read_call(request, self._config, streams=False)
            return call.answer(await self.draw(call.job, call.pin))
        except Exception as error:
            raise built_in(error) from None

    async def stream(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """A dict for each step, and the answer of ``generate`` as the last one."""
        try:
            with self._accounts.reading():
                call = await read_call(request, self._config, streams=True)
            async with aclosing(follow(self, call.job, call.pin)) as messages:
                async for message in messages:
                    yield call.told(message)
        except Exception as error:
            raise built_in(error) from None

    async def fleet(self) -> dict[str, Any]:
        """What ``GET /fleet`` answers."""
        return fleet_json(self.states(), self.totals())

    async def sleep(self, replica_id: str | None = None) -> dict[str, Any]:
        """Give one card back, or all, until the next job or ``wake``: ``{"replicas": [...]}``."""
        return await self._tell("sleep", replica_id)

    async def wake(self, replica_id: str | None = None) -> dict[str, Any]:
        """Take the card again; without an id every replica does."""
        return await self._tell("wake", replica_id)

    async def _tell(self, what: str, replica_id: str | None) -> dict[str, Any]:
        able = [state.id for state in self.states() if state.state in ABLE]
        try:
            if replica_id is not None and replica_id not in able:
                raise ReplicaNotFound(f"no replica {replica_id!r} is up; see /fleet")
            ids = able if replica_id is None else [replica_id]
            answers = await asyncio.gather(*(tell(self._replicas, id_, what) for id_ in ids))
        except Exception as error:
            raise built_in(error) from None
        return {"replicas": answers}

    async def report(self, state: Mapping[str, Any]) -> None:
        """A replica that starts says where it stands."""
        FLEET.report(state)

    # --- ImageBackend ------------------------------------------------------------------------
    async def draw(
        self, job: GenerateJob, pin: str | None = None, on_event: OnEvent = unheard
    ) -> GenerateResult:
        """Send the job, and see to it that it ends: done, stopped, or out of time."""
        with self._accounts.job():
            return await self._see_to_its_end(job, pin, on_event)

    async def _see_to_its_end(
        self, job: GenerateJob, pin: str | None, on_event: OnEvent
    ) -> GenerateResult:
        if job.request_id in self._jobs:
            raise JobError(f"request {job.request_id!r} is already running; use another id")
        if pin is not None and all(state.id != pin for state in self.states()):
            raise ReplicaNotFound(f"the replica {pin!r} does not exist; see /fleet")
        feed = self._feeds[job.request_id] = Feed(on_event)
        task = asyncio.create_task(
            send(
                self._replicas,
                FLEET,
                job,
                pin=pin,
                max_queued=self._config.server.max_queued_requests,
                on_event=feed.tell,
            )
        )
        self._jobs[job.request_id] = task
        outcome = "failed"
        try:
            async with asyncio.timeout(self._config.server.request_timeout_s):
                result = await task
            outcome = "served"
            return result
        except TimeoutError:
            outcome = "timeout"
            raise self._too_long() from None
        except asyncio.CancelledError:
            outcome = "cancelled"
            if _is_being_cancelled():
                raise  # the client hung up
            raise JobCancelled(f"request {job.request_id} was cancelled") from None
        finally:
            del self._jobs[job.request_id], self._feeds[job.request_id]
            feed.end(outcome)

    def cancel(self, request_id: str) -> bool:
        task = self._jobs.get(request_id)
        return task is not None and task.cancel()

    def feed(self, request_id: str) -> Feed | None:
        """The events of a job that waits or runs."""
        return self._feeds.get(request_id)

    def readiness(self) -> Readiness:
        """Ready as soon as one replica is."""
        states = self.states()
        if any(state.state in ABLE for state in states):
            return Readiness(ready=True, state="ready")
        if not states:
            return Readiness(ready=False, state="starting", detail="waiting for the first replica")
        first = states[0]
        return Readiness(ready=False, state=first.state.value, detail=first.detail)

    def states(self) -> Sequence[ReplicaState]:
        return FLEET.states()

    def totals(self) -> Totals:
        return replace(FLEET.totals(), requests=dict(self._accounts.counts))

    def metrics_text(self) -> str:
        return self._exposition.text()

    def _too_long(self) -> TimeoutError:
        limit_s = self._config.server.request_timeout_s
        return TimeoutError(f"the request took longer than {limit_s:g} s and was stopped")


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
