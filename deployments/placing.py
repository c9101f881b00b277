"""Brings a loaded pipeline onto a card: place, warm up, measure, and admit less if need be.

It knows the order of these steps and what to do when memory runs out in one of them; drawing for
clients is the engine's.
"""

import gc
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deployments.admitted import Size, largest_size, smaller_size
from deployments.calibration import (
    PROBE_STEPS,
    Calibration,
    Outcome,
    Steps,
    budget_of,
    describe,
)
from deployments.config import AppConfig
from deployments.messages import GenerateJob
from deployments.pipeline import LoadedPipeline
from deployments.record_key import record_key
from deployments.records import Record, Records
from deployments.stages import Stages
from deployments.trial import usual_seconds
from deployments.warm_up import attach_and_warm_up
from offload import (
    Budget,
    Card,
    DoesNotFitError,
    Residency,
    is_out_of_memory,
    plan_residency,
    predicted,
    survey_components,
    with_known,
    with_measured,
)

SHRINK = 0.15  # of the budget: what is set aside more after each start that ran out of memory
logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A pipeline that is ready to draw."""

    residency: Residency
    outcome: Outcome | None  # None: nothing was measured
    max_pixels: int  # that this card holds; never above what the file admits


class Placing:
    """One start of one replica."""

    def __init__(
        self,
        config: AppConfig,
        pipeline: LoadedPipeline,
        card: Card,
        stages: Stages,
        when_placed: Callable[[], None] = lambda: None,
    ) -> None:
        """``when_placed`` is called once the weights are where they stay, before anything runs."""
        self._config = config
        self._pipeline = pipeline
        self._card = card
        self._stages = stages
        self._when_placed = when_placed
        self._size = largest_size(
            config.limits.max_pixels, config.defaults.width_height, pipeline.size_multiple
        )
        self._lowered = False
        self._records = Records(
            config.calibration_dir,
            config.model.name,
            card.name,
            record_key(config, card.facts()),
            logger.info,
        )
        self._record: Record | None = None

    def place(self) -> Placed:
        """Ready to draw the largest admitted picture, or the largest that this card can hold.

        It ends: where memory runs out more is set aside, until a plan holds or the planner says
        that not even streaming fits; then the picture shrinks, and the smallest one's error leaves.
        """
        self._record = self._records.read() if self._config.calibrate else None
        while True:
            try:
                return self._try_to_place()
            except Exception as error:
                self._judge(error)
            gc.collect()  # outside the except block: an error's frames hold activations
            self._card.empty_cache()

    def _judge(self, error: Exception) -> None:
        """What to change for the next try; raises where there is nothing left to change."""
        if isinstance(error, DoesNotFitError):
            smaller = smaller_size(self._size, self._pipeline.size_multiple)
            if smaller is None or not self._config.may_shrink:
                raise error
            logger.warning(
                f"{_words(self._size)} does not fit on this card, so it admits up to "
                f"{_words(smaller)} only: {error}"
            )
            self._size, self._lowered = smaller, True
            self._card.set_aside_bytes = 0
        elif is_out_of_memory(error):
            logger.warning(f"out of memory while starting, planning smaller: {error}")
            self._card.set_aside_bytes += int(SHRINK * Budget.of(self._card.facts()).num_bytes)
        else:
            raise error
        self._record = None  # it was measured when more fitted

    # --- one try -----------------------------------------------------------------------------
    def _try_to_place(self) -> Placed:
        residency = attach_and_warm_up(self._attach, self._warm_up, logger.warning)
        try:
            outcome = self._outcome(residency)
        except BaseException:
            residency.detach()
            raise
        if outcome is not None:
            logger.info(describe(outcome))
        width, height = self._size
        admitted = width * height if self._lowered else self._config.limits.max_pixels
        return Placed(residency=residency, outcome=outcome, max_pixels=admitted)

    def _attach(self, keep_in_trunk: Mapping[str, Collection[str]]) -> Residency:
        modules, record = self._pipeline.components, self._record
        measured = record.measured if record is not None and record.kept else None
        with self._stages.stage("place", "planning"):
            surveyed = survey_components(modules, keep_in_trunk)
            facts = with_known(surveyed, self._activation_bytes(), self._config.passes)
            if measured is not None:
                facts = with_measured(facts, measured)
            budget = budget_of(self._card, measured)
            residency = Residency.attach(
                modules,
                card=self._card,
                plan=plan_residency(self._config.to_spec(), facts, budget),
                passes=self._config.passes,
                keep_in_trunk=keep_in_trunk,
                log=logger.info,
                progress=self._stages.placing,
            )
            residency.facts = facts
        self._when_placed()
        return residency

    def _activation_bytes(self) -> dict[str, int]:
        """As the file says for its largest picture; activations grow with the pixels."""
        width, height = self._size
        share = min(1.0, width * height / self._config.limits.max_pixels)
        return {name: int(size * share) for name, size in self._config.activation_bytes.items()}

    def _warm_up(self, residency: Residency) -> None:
        with self._stages.stage("warm-up", f"drawing a first picture, {_words(self._size)}"):
            self._draw(residency)

    # --- measuring ---------------------------------------------------------------------------
    def _outcome(self, residency: Residency) -> Outcome | None:
        if not self._config.calibrate:
            return None
        if self._record is not None:
            return self._recorded(residency, self._record)
        calibration = Calibration(
            residency,
            self._config.to_spec(),
            lambda: self._draw(residency),
            Steps(probe=self._probe_steps, usual=self._config.defaults.steps),
            f"measured at {_words(self._size)}",
        )
        with self._stages.stage("calibrate", "measuring"):
            outcome = calibration.run()
        self._records.write(outcome.record)
        return outcome

    def _recorded(self, residency: Residency, record: Record) -> Outcome:
        residency.facts = with_measured(residency.facts, record.measured)
        ahead = predicted(residency.plan, residency.facts)
        return Outcome(
            measured=record.measured,
            predicted_s=ahead["request_s"],
            measured_s=record.seconds,
            peak_bytes=ahead["peak_bytes"],
            measured_peak_bytes=record.peak_bytes,
            kept=record.kept,
            reason=record.reason,
            from_record=True,
        )

    @property
    def _probe_steps(self) -> int:
        return min(PROBE_STEPS, self._config.limits.max_steps)

    def _draw(self, residency: Residency) -> float:
        """One probe picture in a request of its own; seconds of a usual request."""
        ends_s: list[float] = []

        def on_step(step: int, of: int, preview: object = None, /) -> None:
            self._card.synchronize()  # else a step ends when its kernels are queued
            ends_s.append(self._card.now())

        began_s = self._card.now()
        with residency.request():
            self._pipeline.generate(self._probe(), on_step, lambda: False)
        total_s = self._card.now() - began_s
        return usual_seconds(total_s, ends_s, self._config.defaults.steps)

    def _probe(self) -> GenerateJob:
        width, height = self._size
        return GenerateJob(
            request_id="warm-up",
            prompt="a circle",
            width=width,
            height=height,
            steps=self._probe_steps,
            seed=0,
        )


def _words(size: Size) -> str:
    width, height = size
    return f"{width}x{height}"
