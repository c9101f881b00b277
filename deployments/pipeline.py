"""The only import of diffusers: load a stock pipeline on the host, name its parts, draw with it.

Knows nothing of cards, residency or Ray: it moves nothing, and whoever manages the components'
weights finds them under ``components``.
"""

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from PIL.Image import Image

from deployments.arguments import arguments_of
from deployments.config import ComponentConfig, ModelConfig
from deployments.errors import JobError, JobFailed, ModelError
from deployments.loading import ModelFolder, check_model_folder, find_model_folder
from deployments.messages import GenerateJob
from deployments.previews import Projection, num_positions
from deployments.steps import Cancelled, OnStep, StepWatch
from deployments.tokens import count_tokens
from deployments.upcast import hold_upcast, rest


class LoadedPipeline:
    """A stock pipeline on the host. One job at a time, from one thread."""

    def __init__(self, pipeline: diffusers.DiffusionPipeline) -> None:
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline = pipeline
        self._schedulers = {
            name: copy.deepcopy(part)
            for name, part in pipeline.components.items()
            if isinstance(part, diffusers.SchedulerMixin)
        }
        self._accepted = inspect.signature(pipeline.__call__).parameters
        self._tokenizer = _tokenizer_of(pipeline)
        self._projection = Projection()
        self._modes: set[str] = set()  # of the pictures that were drawn
        self._num_positions = 0  # of the latents of the picture drawn last

    @property
    def name(self) -> str:
        """The pipeline's class."""
        return type(self._pipeline).__name__

    @property
    def components(self) -> dict[str, torch.nn.Module]:
        """The parts that hold weights, in the pipeline's own order."""
        parts = self._pipeline.components.items()
        return {name: part for name, part in parts if isinstance(part, torch.nn.Module)}

    @property
    def size_multiple(self) -> int:
        """Width and height are multiples of this: latents are taken two by two."""
        return 2 * int(getattr(self._pipeline, "vae_scale_factor", 8))

    def check(self, job: GenerateJob) -> None:
        """JobError where this pipeline cannot draw what the job asks for."""
        arguments_of(job, self._accepted, self.name)
        if job.background == "transparent" and self._modes - {"RGBA", "LA"}:
            raise JobError(f"{self.name} draws opaque pictures; leave it out", "background")
        multiple = self.size_multiple
        for side in ("width", "height"):
            pixels = getattr(job, side)
            if pixels % multiple:
                near = max(multiple, round(pixels / multiple) * multiple)
                raise JobError(
                    f"{side} is {pixels}; {self.name} draws multiples of {multiple}, such as {near}"
                )

    def warnings(self, job: GenerateJob) -> tuple[str, ...]:
        """What the job asks for that will have no effect."""
        if "true_cfg_scale" not in self._accepted:
            return ()
        scale = job.true_cfg_scale
        if scale is None:
            scale = self._accepted["true_cfg_scale"].default
        if job.negative_prompt is not None and scale <= 1:
            return (f"negative_prompt has no effect: true_cfg_scale is {scale}, give one above 1",)
        if job.true_cfg_scale is not None and scale > 1 and job.negative_prompt is None:
            return (f"true_cfg_scale {scale} has no effect without a negative_prompt",)
        return ()

    def generate(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> list[Image]:
        """Draw every image of the job, each with its own seed; JobCancelled within one step.

        Images are drawn one by one, so that image i of a job equals the only image of a job with
        that seed.
        """
        self.check(job)
        images: list[Image] = []
        for index, seed in enumerate(job.seeds):
            watch = StepWatch(job, index, on_step, cancelled, self._projection)
            watch.stop_if_cancelled()
            images.append(self._draw(job, seed, watch))
            watch.finish(images[-1])
            self._num_positions = num_positions(watch.shape)
        return images

    def tokens(self, job: GenerateJob) -> dict[str, int]:
        """What the job that was drawn last read and drew, by kind."""
        return count_tokens(job, self._tokenizer, self._num_positions)

    def _draw(self, job: GenerateJob, seed: int, watch: StepWatch) -> Image:
        self._renew_schedulers()
        rest(self.components.values())
        with torch.no_grad():
            result = self._pipeline(
                **arguments_of(job, self._accepted, self.name),
                generator=torch.Generator("cpu").manual_seed(seed),  # the same noise on every card
                output_type="pil",
                callback_on_step_end=watch,
            )
        image: Image = result.images[0]
        self._modes.add(image.mode)
        if image.size != (job.width, job.height):
            raise JobFailed(
                f"{self.name} drew {image.width}x{image.height} for {job.width}x{job.height}; "
                f"ask for multiples of {self.size_multiple}"
            )
        return image

    def _renew_schedulers(self) -> None:
        """A scheduler keeps state between calls, also after a cancelled one: start from a copy."""
        for name, pristine in self._schedulers.items():
            setattr(self._pipeline, name, copy.deepcopy(pristine))


def _tokenizer_of(pipeline: diffusers.DiffusionPipeline) -> Any:
    """The first one, which may be a processor's; None where there is none of transformers'."""
    parts = [getattr(part, "tokenizer", part) for part in pipeline.components.values()]
    kind = transformers.PreTrainedTokenizerBase
    return next((part for part in parts if isinstance(part, kind)), None)


def load_pipeline(
    model: ModelConfig, components: Mapping[str, ComponentConfig] | None = None
) -> LoadedPipeline:
    """Check the folder, then load every part on the host in the dtype that the model asks for."""
    found = find_model_folder(
        model.source, revision=model.revision, local_files_only=model.local_files_only
    )
    folder = check_model_folder(found or _download(model))
    _quieten()
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        str(folder.path),
        dtype=component_dtypes(model, folder),
        use_safetensors=True,
        local_files_only=True,  # whatever was missing is in the folder by now
        trust_remote_code=False,
    )
    loaded = LoadedPipeline(pipeline)
    hold_upcast(type(pipeline), loaded.components.values())
    for part in loaded.components.values():
        part.requires_grad_(False)
    apply_settings(loaded.components, components or {})
    return loaded


def component_dtypes(model: ModelConfig, folder: ModelFolder) -> dict[str, torch.dtype]:
    """Component -> dtype, with ``default`` for the rest, as ``from_pretrained`` reads it."""
    unknown = sorted(set(model.component_dtypes) - set(folder.components))
    if unknown:
        raise ModelError(
            f"model.component_dtypes names {', '.join(unknown)}; {folder.pipeline_class} has "
            f"{', '.join(folder.components)}"
        )
    dtypes = {name: getattr(torch, model.dtype_of(name)) for name in folder.components}
    return {"default": getattr(torch, model.dtype), **dtypes}


def apply_settings(
    parts: Mapping[str, torch.nn.Module], components: Mapping[str, ComponentConfig]
) -> None:
    """Tiling where the file asks for it; ModelError where a part has none."""
    for name, part in parts.items():
        if name not in components or not components[name].tiling:
            continue
        enable: Any = getattr(part, "enable_tiling", None)
        if enable is None:
            raise ModelError(
                f"components.{name}.tiling is true, but {type(part).__name__} has no tiling; "
                "leave it out"
            )
        enable()


def _download(model: ModelConfig) -> Path:
    return Path(
        diffusers.DiffusionPipeline.download(
            model.source, revision=model.revision, use_safetensors=True, trust_remote_code=False
        )
    )


def _quieten() -> None:
    """No progress bars of other libraries: the replica reports its own progress."""
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
