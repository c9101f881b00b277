"""Follows a job's denoising steps: reports each one and stops a cancelled job.

Knows the callback that diffusers calls at the end of a step; knows nothing else of a pipeline.
"""

from collections.abc import Callable
from typing import Any

from deployments.errors import JobCancelled
from deployments.messages import GenerateJob

OnStep = Callable[[int, int], None]  # (steps done, of), counted over all images of the job
Cancelled = Callable[[], bool]


class StepWatch:
    """The callback for one image of a job; it changes no latents."""

    def __init__(self, job: GenerateJob, index: int, on_step: OnStep, cancelled: Cancelled) -> None:
        self._job = job
        self._before = index * job.steps  # steps of the images before this one
        self._on_step = on_step
        self._cancelled = cancelled

    def __call__(
        self, pipeline: Any, step: int, timestep: Any, values: dict[str, Any]
    ) -> dict[str, Any]:
        done = min(step + 1, self._job.steps)  # some schedulers take more steps than asked
        self._on_step(self._before + done, self._job.steps * self._job.images)
        self.stop_if_cancelled()
        return values

    def stop_if_cancelled(self) -> None:
        """JobCancelled as soon as someone asked for it."""
        if self._cancelled():
            raise JobCancelled(f"request {self._job.request_id} was cancelled")
