"""What a replica does on its owner thread: find its card, load, place, draw.

Knows pipelines and residency; nothing of Ray or of other replicas. Everything but reading
attributes happens on one thread.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from PIL.Image import Image

from deployments.calibration import describe
from deployments.cards import wait_for_free_memory
from deployments.config import AppConfig
from deployments.errors import JobError, JobFailed, ReplicaFailed
from deployments.images import encode
from deployments.loading_turn import loading_turn
from deployments.messages import CardState, DrawnImage, GenerateJob, GenerateResult
from deployments.pipeline import load_pipeline
from deployments.placing import Placing
from deployments.recovery import recover
from deployments.stages import Stages
from deployments.steps import Cancelled, OnStep
from offload import (
    Card,
    RequestUsage,
    ResidencyPlan,
    explain,
    is_out_of_memory,
    is_sticky,
)

Drawn = tuple[list[Image], RequestUsage, tuple[str, ...]]  # pictures, cost, what to tell the client

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
        self.out_of_memory = 0  # times that a job ran out of it
        self.sticky_error = ""  # set once the card cannot be used by this process any more
        with loading_turn(config, name, stages) as turn:
            with stages.stage("load", f"loading {config.model.name}"):
                self._pipeline = load_pipeline(config.model, config.components)
            placed = Placing(config, self._pipeline, self._card, stages, turn.end).place()
        self._residency, self._outcome = placed.residency, placed.outcome
        self._explained: tuple[ResidencyPlan, str] | None = None
        self.max_pixels = placed.max_pixels  # this card's own limit, at most the file's
        self.snapshot = self._residency.snapshot().to_dict()
        logger.info(self.explanation)

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
        """The plan in force in words, prediction beside measurement where there is one."""
        plan = self._residency.plan
        if self._explained is None or self._explained[0] is not plan:  # it is asked for often
            said = explain(plan, self._residency.facts)
            outcome = "" if self._outcome is None else f"\n{describe(self._outcome)}."
            self._explained = plan, said + outcome
        return self._explained[1]

    @property
    def predicted_s(self) -> float:
        return 0.0 if self._outcome is None else self._outcome.predicted_s

    @property
    def calibration(self) -> dict[str, Any]:
        """What the last one came to; empty where nothing was measured."""
        return {} if self._outcome is None else self._outcome.to_dict()

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._residency.plan.warnings

    def draw(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> GenerateResult:
        """The job's pictures; JobError, JobCancelled, JobFailed, or ReplicaFailed."""
        self._pipeline.check(job)
        self._refuse_too_large(job)
        began = time.perf_counter()
        self.wake()
        try:
            pictures, usage, notes = self._draw(job, on_step, cancelled)
        finally:
            self.snapshot = self._residency.snapshot().to_dict()
        encoded = [_encoded(picture, job) for picture in pictures]
        pairs = zip(encoded, job.seeds, strict=True)
        return GenerateResult(
            images=tuple(DrawnImage(data=data, seed=seed) for data, seed in pairs),
            replica=self._name,
            usage=usage.to_dict(),
            tokens=self._pipeline.tokens(job),
            warnings=(
                *self._config.model.size_warnings(job.width, job.height),
                *self._pipeline.warnings(job),
                *notes,
            ),
            seconds=time.perf_counter() - began,
        )

    def _refuse_too_large(self, job: GenerateJob) -> None:
        if job.width * job.height > self.max_pixels:
            raise JobError(
                f"size {job.width}x{job.height} has {job.width * job.height} pixels; the card of "
                f"replica {self._name} holds pictures of up to {self.max_pixels} pixels"
            )

    @property
    def asleep(self) -> bool:
        return self._residency.asleep

    def sleep(self) -> None:
        """Give the whole card back until ``wake`` or the next job; idempotent."""
        self._residency.sleep()
        self.snapshot = self._residency.snapshot().to_dict()

    def wake(self) -> None:
        """Take the card again; ReplicaFailed where it or the checkpoint changed. Idempotent."""
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

    def _cannot_wake(self, error: Exception) -> ReplicaFailed:
        """Lack of memory may pass; anything else costs this replica its life."""
        if is_out_of_memory(error):
            said = str(error).splitlines()[0]
            return ReplicaFailed(f"others took the card's memory while this replica slept: {said}")
        self.sticky_error = str(error)
        return ReplicaFailed(f"this replica cannot wake and is replaced: {error}", lost=True)

    def _draw(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> Drawn:
        """Once more from the beginning, with a smaller plan, where the card ran out of memory."""
        first = self._try(job, on_step, cancelled)
        if not isinstance(first, str):
            return (*first, ())
        size = f"{job.width}x{job.height}"
        self.out_of_memory += 1
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

    def _judged(self, error: Exception) -> Exception:
        """The same error, or that this replica is lost with it."""
        if is_sticky(error):
            self.sticky_error = str(error)
            said = f"the card failed and this replica is replaced: {error}"
            return ReplicaFailed(said, lost=True)
        return error


def _encoded(picture: Image, job: GenerateJob) -> bytes:
    return encode(picture, job.output_format, job.output_compression, job.background)
