"""The deployment that owns one card: starts its engine, runs one job at a time, tells how it is.

Imports no torch: that happens on the owner thread, where it is timed. Serve's hooks are all async
and only read, so that they answer while a job runs.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from deployments.config import AppConfig
from deployments.errors import outcome_of
from deployments.messages import (
    CardState,
    GenerateJob,
    GenerateResult,
    ReplicaState,
    State,
    StepEvent,
)
from deployments.previews import preview_of
from deployments.remaining import Remaining
from deployments.serve_metrics import ReplicaMetrics
from deployments.sleeping import IdleClock
from deployments.stages import Stages
from deployments.starting import Place, StartWatch, check_gpu, make_engine, place_in_fleet
from deployments.tally import Tally
from offload import CardError

if TYPE_CHECKING:
    from deployments.engine import Engine
    from deployments.steps import OnStep

logger = logging.getLogger("ray.serve")
Told = tuple[StepEvent, Image | None]  # a step, and its preview before it is encoded
UNKNOWN_CARD = CardState(name="", memory_bytes=0, free_bytes=0, simulated=False)


class DiffusionReplica:
    """One card, one pipeline, one job at a time."""

    def __init__(
        self,
        config: AppConfig,
        use_gpu: bool,
        *,
        place: "Callable[[], Place] | None" = None,
        make: "Callable[..., Engine] | None" = None,
    ) -> None:
        """``place`` and ``make`` are for tests: where this is, and another engine."""
        num_seats = 0 if use_gpu else config.cards.num_seats
        self._id, app, rank = place() if place else place_in_fleet(num_seats)
        self._stages = Stages()
        self._tally = Tally()
        self._busy = False
        self._engine: Engine | None = None
        self._remaining = Remaining()
        self._metrics = ReplicaMetrics()
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="owner")
        self._idle = IdleClock(config.server.sleep_after_s, self._fall_asleep)
        check_gpu(use_gpu)
        starting = self._owner.submit(
            make or make_engine, config, self._id, rank, use_gpu, self._stages
        )
        self._engine = StartWatch(app, self._stages, self._state).result(starting)
        self._idle.start()

    # --- jobs --------------------------------------------------------------------------------
    async def generate(self, values: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Step events while the job runs, then its result; all plain dicts.

        However it ends, the slot stays taken until the owner thread has really stopped.
        """
        job = GenerateJob.from_dict(values)
        with self._idle.busy():
            async for message in self._follow(job):
                yield message

    async def _follow(self, job: GenerateJob) -> AsyncIterator[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Told | None] = asyncio.Queue()
        cancelled = threading.Event()

        def on_step(step: int, of: int, sketch: Image | None = None) -> None:
            event = StepEvent(step=step, of=of, left_s=self._remaining.left_s(step, of))
            loop.call_soon_threadsafe(events.put_nowait, (event, sketch))

        running = loop.run_in_executor(self._owner, self._draw, job, on_step, cancelled.is_set)
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (told := await events.get()) is not None:
                event, sketch = told
                if sketch is not None:  # encoded on another thread: the card is not kept waiting
                    preview = await asyncio.to_thread(preview_of, job, event.step, sketch)
                    event = replace(event, preview=preview)
                yield event.to_dict()
            yield (await running).to_dict()
        finally:
            cancelled.set()
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # looked at, so that asyncio does not report it as forgotten

    def _draw(
        self, job: GenerateJob, on_step: "OnStep", cancelled: Callable[[], bool]
    ) -> GenerateResult:
        """On the owner thread: one job, and its place in the statistics."""
        assert self._engine is not None
        self._busy = True
        if job.attempt > 1:
            self._tally.count("retried")
        began = time.perf_counter()
        self._remaining.begin()
        try:
            result = self._engine.draw(job, on_step, cancelled)
        except BaseException as error:
            self._tally.count(outcome_of(error))
            raise
        else:
            self._remaining.end()
            seconds = time.perf_counter() - began
            self._tally.served(seconds, result.usage)
            self._metrics.job_served(self._engine.card.name, seconds)
            return result
        finally:
            self._busy = False

    # --- sleep -------------------------------------------------------------------------------
    async def sleep(self) -> dict[str, Any]:
        """Give the card back until the next job; after the running one."""
        return await self._on_owner(lambda engine: engine.sleep())

    async def wake(self) -> dict[str, Any]:
        """Take the card again before a job asks for it."""
        with self._idle.busy():
            return await self._on_owner(lambda engine: engine.wake())

    async def _on_owner(self, act: "Callable[[Engine], None]") -> dict[str, Any]:
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        assert self._engine is not None
        await loop.run_in_executor(self._owner, act, self._engine)
        state = self._state()
        return {
            "replica": self._id,
            "state": state.state.value,
            "allocated_bytes": state.memory["card"]["allocated_bytes"],  # on the card, by us
            "seconds": time.perf_counter() - began,
        }

    def _fall_asleep(self) -> None:
        """On the clock's thread: the owner thread does it, if nobody came meanwhile."""
        with suppress(RuntimeError):  # the replica is being shut down
            self._owner.submit(self._sleep_if_idle)

    def _sleep_if_idle(self) -> None:
        if self._engine is None or not self._idle.idle:
            return
        try:
            self._engine.sleep()
        except Exception:
            logger.exception("replica %s stays awake", self._id)
        else:
            logger.info("replica %s sleeps: nothing was asked of it", self._id)

    # --- Serve's hooks -----------------------------------------------------------------------
    async def check_health(self) -> None:
        """Raises once the card cannot be used any more: Serve then replaces this process."""
        if self._engine is not None and self._engine.sticky_error:
            raise CardError(f"the card failed: {self._engine.sticky_error}")

    async def record_replica_metadata(self) -> dict[str, Any]:
        return self._state().to_dict()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Polled by the controller, also while a job runs; pushed to the driver when it changed."""
        state = self._state()
        self._metrics.refresh(state)
        return state.to_dict()

    # --- state -------------------------------------------------------------------------------
    def _state(self) -> ReplicaState:
        engine = self._engine
        if engine is None:
            return ReplicaState(
                id=self._id,
                card=UNKNOWN_CARD,
                state=State.STARTING,
                detail=self._stages.detail,
                stages=dict(self._stages.seconds),
            )
        return ReplicaState(
            id=self._id,
            card=engine.card,
            state=self._running_state(engine),
            detail=engine.sticky_error,
            components=engine.components,
            wish=engine.wish,
            explanation=engine.explanation,
            predicted_s=engine.predicted_s,
            calibration=engine.calibration,
            limits={"max_pixels": engine.max_pixels},
            warnings=engine.warnings,
            latency=self._tally.latency.to_dict(),
            stages=dict(self._stages.seconds),
            memory={key: part for key, part in engine.snapshot.items() if key != "components"},
            moved=self._tally.moved,
            **self._tally.counts,
            out_of_memory=engine.out_of_memory,
        )

    def _running_state(self, engine: "Engine") -> State:
        if engine.sticky_error:
            return State.UNHEALTHY
        if self._busy:
            return State.BUSY
        return State.SLEEPING if engine.asleep else State.READY
