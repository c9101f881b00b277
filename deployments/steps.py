"""Follows a job's denoising steps: reports each one, with its preview, and stops a cancelled job.

Knows the callback that diffusers calls at the end of a step; knows nothing else of a pipeline.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from PIL.Image import Image

from deployments.errors import JobCancelled
from deployments.messages import GenerateJob
from deployments.previews import Projection, Sketcher

Cancelled = Callable[[], bool]


class OnStep(Protocol):
    """Told of each step that is done, counted over all images of the job."""

    def __call__(self, step: int, of: int, preview: Image | None = None, /) -> None:
        """``preview``: small, one pixel a position; given after the steps that the job names."""
        ...


class StepWatch:
    """The callback for one image of a job; it changes no latents."""

    def __init__(
        self,
        job: GenerateJob,
        index: int,
        on_step: OnStep,
        cancelled: Cancelled,
        projection: Projection,
    ) -> None:
        self._job = job
        self._before = index * job.steps  # steps of the images before this one
        self._on_step = on_step
        self._cancelled = cancelled
        self._sketcher = Sketcher(projection, job)
        self.shape: tuple[int, ...] = ()  # of the latents

    def __call__(
        self, pipeline: Any, step: int, timestep: Any, values: dict[str, Any]
    ) -> dict[str, Any]:
        done = min(step + 1, self._job.steps)  # some schedulers take more steps than asked
        said = self._before + done, self._job.steps * self._job.images
        preview = self._look(pipeline, step + 1, values.get("latents"))
        self._on_step(*said) if preview is None else self._on_step(*said, preview)
        self.stop_if_cancelled()
        return values

    def _look(self, pipeline: Any, step: int, latents: Any) -> Image | None:
        """Latents come to the host after the steps that need it, and wait for the card then."""
        self.shape = () if latents is None else tuple(latents.shape)
        if latents is None or not self._sketcher.wants(step):
            return None
        numbers = latents.detach().float().cpu().numpy()
        return self._sketcher.after(step, numbers, _sigmas_of(pipeline))

    def finish(self, picture: Image) -> None:
        """The image is drawn."""
        self._sketcher.finish(picture)

    def stop_if_cancelled(self) -> None:
        """JobCancelled as soon as someone asked for it."""
        if self._cancelled():
            raise JobCancelled(f"request {self._job.request_id} was cancelled")


def _sigmas_of(pipeline: Any) -> Sequence[float]:
    """Noise before each step, where the path between two steps is straight; else nothing."""
    scheduler: Any = getattr(pipeline, "scheduler", None)
    straight = type(scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"
    if not straight or scheduler.config.stochastic_sampling:
        return ()
    return tuple(scheduler.sigmas.tolist())
