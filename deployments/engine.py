"""What a replica does on its owner thread: find its card, load, place, draw.

Knows pipelines and residency; nothing of Ray or of other replicas. Everything but reading
attributes happens on one thread.
"""

import gc
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from PIL.Image import Image

from deployments.cards import wait_for_free_memory
from deployments.config import AppConfig
from deployments.errors import JobFailed
from deployments.images import encode_png
from deployments.messages import CardState, DrawnImage, GenerateJob, GenerateResult
from deployments.pipeline import load_pipeline
from deployments.recovery import recover
from deployments.stages import Stages
from deployments.steps import Cancelled, OnStep
from deployments.warm_up import attach_and_warm_up
from offload import (
    Budget,
    Card,
    RequestUsage,
    Residency,
    explain,
    is_out_of_memory,
    is_sticky,
)

Drawn = tuple[list[Image], RequestUsage, tuple[str, ...]]  # pictures, cost, what to tell the client

WARM_UP_STEPS = 2
SHRINK = 0.15  # of the budget: what is set aside more after each start that ran out of memory
logger = logging.getLogger("ray.serve")


class Engine:
    """One card, one pipeline and the residency of its weights."""

    def __init__(
        self, config: AppConfig, find: Callable[[], Card], *, name: str, stages: Stages
    ) -> None:
        """``find`` gives the card; ``name`` signs the pictures."""
        self._config = config
        self._name = name
        self._stages = stages
        with stages.stage("detect", "looking at the card"):
            self._card = find()
            facts = wait_for_free_memory(self._card)
        self.card = CardState(
            name=facts.name,
            memory_bytes=facts.memory_bytes,
            free_bytes=facts.free_bytes,
            simulated=facts.simulated,
            uuid=facts.uuid,
        )
        self.snapshot: dict[str, Any] = {}  # offload's, as of the last job
        self.sticky_error = ""  # set once the card cannot be used by this process any more
        with stages.stage("load", f"loading {config.model.name}"):
            self._pipeline = load_pipeline(config.model, config.components)
        self._residency = self._place()

    @property
    def components(self) -> tuple[dict[str, Any], ...]:
        """Component reports, each with its name."""
        reports = self.snapshot.get("components", {})
        return tuple({"name": name, **report} for name, report in reports.items())

    @property
    def wish(self) -> dict[str, str]:
        return {component.name: component.wish for component in self._residency.plan.components}

    @property
    def explanation(self) -> str:
        return explain(self._residency.plan)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._residency.plan.warnings

    def draw(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> GenerateResult:
        """The job's pictures; JobError, JobCancelled or JobFailed."""
        self._pipeline.check(job)
        began = time.perf_counter()
        self.wake()
        try:
            pictures, usage, notes = self._draw(job, on_step, cancelled)
        finally:
            self.snapshot = self._residency.snapshot().to_dict()
        pairs = zip(pictures, job.seeds, strict=True)
        return GenerateResult(
            images=tuple(DrawnImage(png=encode_png(picture), seed=seed) for picture, seed in pairs),
            replica=self._name,
            usage=usage.to_dict(),
            warnings=(
                *self._config.model.size_warnings(job.width, job.height),
                *self._pipeline.warnings(job),
                *notes,
            ),
            seconds=time.perf_counter() - began,
        )

    @property
    def asleep(self) -> bool:
        return self._residency.asleep

    def sleep(self) -> None:
        """Give the whole card back until ``wake`` or the next job; idempotent."""
        self._residency.sleep()
        self.snapshot = self._residency.snapshot().to_dict()

    def wake(self) -> None:
        """Take the card again; JobFailed where it or the checkpoint changed since. Idempotent."""
        if not self.asleep:
            return
        try:
            self._residency.wake()
        except Exception as error:
            failure = self._cannot_wake(error)
        else:
            self.snapshot = self._residency.snapshot().to_dict()
            return
        raise failure

    def _cannot_wake(self, error: Exception) -> JobFailed:
        """Lack of memory may pass; anything else costs this replica its life."""
        if is_out_of_memory(error):
            said = str(error).splitlines()[0]
            return JobFailed(f"others took the card's memory while this replica slept: {said}")
        self.sticky_error = str(error)
        return JobFailed(f"this replica cannot wake and is replaced: {error}")

    def _draw(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> Drawn:
        """Once more from the beginning, with a smaller plan, where the card ran out of memory."""
        first = self._try(job, on_step, cancelled)
        if not isinstance(first, str):
            return (*first, ())
        size = f"{job.width}x{job.height}"
        report = recover(self._residency, self._card, first, size)
        logger.warning(report)
        second = self._try(job, on_step, cancelled)
        if isinstance(second, str):
            raise JobFailed(f"{report}; and again: {second}; ask for a smaller size than {size}")
        return (*second, (f"drawn at the second try: {report}",))

    def _try(
        self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled
    ) -> tuple[list[Image], RequestUsage] | str:
        """Pictures and cost, or the words of an out-of-memory error (its frames are gone then)."""
        try:
            with self._residency.request() as usage:
                return self._pipeline.generate(job, on_step, cancelled), usage
        except Exception as error:
            if is_out_of_memory(error):
                return str(error).splitlines()[0]
            raise self._judged(error) from error

    def _place(self) -> Residency:
        """Place and warm up; out of memory means again, with more set aside.

        It ends: with less and less to plan with, either a plan holds or the planner says that
        not even streaming fits, and that error leaves.
        """
        while True:
            try:
                return self._try_to_place()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning(f"out of memory while starting, planning smaller: {error}")
            gc.collect()
            self._card.empty_cache()
            budget_bytes = Budget.of(self._card.facts()).num_bytes
            self._card.set_aside_bytes += int(SHRINK * budget_bytes)

    def _try_to_place(self) -> Residency:
        residency = attach_and_warm_up(self._attach, self._warm_up, logger.warning)
        self.snapshot = residency.snapshot().to_dict()
        return residency

    def _attach(self, keep_in_trunk: Mapping[str, Collection[str]]) -> Residency:
        stages = self._stages
        with stages.stage("place", "planning"):
            return Residency.attach(
                self._pipeline.components,
                card=self._card,
                spec=self._config.to_spec(),
                activation_bytes=self._config.activation_bytes,
                passes=self._config.passes,
                keep_in_trunk=keep_in_trunk,
                log=logger.info,
                progress=stages.placing,
            )

    def _warm_up(self, residency: Residency) -> None:
        """A short job of the default size: what it teaches, the first request already has."""
        width, height = self._config.defaults.width_height
        steps = min(WARM_UP_STEPS, self._config.limits.max_steps)
        job = GenerateJob(
            request_id="warm-up", prompt="a circle", width=width, height=height, steps=steps, seed=0
        )
        with self._stages.stage("warm-up", "drawing a first picture"), residency.request():
            self._pipeline.generate(job, lambda step, of: None, lambda: False)

    def _judged(self, error: Exception) -> Exception:
        """The same error, or that this replica is lost with it."""
        if is_sticky(error):
            self.sticky_error = str(error)
            return JobFailed(f"the card failed and this replica is replaced: {error}")
        return error
