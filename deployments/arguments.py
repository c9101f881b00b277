"""A job as the arguments of a stock pipeline, or what that pipeline lacks.

Knows names of arguments and Pillow; no diffusers, no torch.
"""

import io
import math
from collections.abc import Container
from typing import Any

from PIL import Image

from deployments.errors import JobError
from deployments.messages import GenerateJob

# Fields of a job under the names that pipelines give them; None leaves the pipeline's default.
ARGUMENTS = {
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "width": "width",
    "height": "height",
    "steps": "num_inference_steps",
    "guidance_scale": "guidance_scale",
    "true_cfg_scale": "true_cfg_scale",
}
# Where a list of images is one set that conditions the picture; elsewhere it is a batch.
TAKE_SETS = frozenset(
    {"QwenImage21Pipeline", "QwenImageEditPlusPipeline", "Flux2Pipeline", "Flux2KleinPipeline"}
)
CONDITION_MULTIPLE = 32  # what output_resolution is rounded to by the pipelines that have it


def arguments_of(job: GenerateJob, accepted: Container[str], pipeline: str) -> dict[str, Any]:
    """``accepted`` names the pipeline's parameters; JobError where one is missing."""
    asked = {ours: getattr(job, ours) for ours in ARGUMENTS}
    given = {ours: value for ours, value in asked.items() if value is not None}
    unknown = [ours for ours in given if ARGUMENTS[ours] not in accepted]
    if unknown:
        raise JobError(f"{pipeline} has no {', '.join(unknown)}; leave it out of the request")
    plain = {ARGUMENTS[ours]: value for ours, value in given.items()}
    return plain | _pictures(job, accepted, pipeline) if job.inputs else plain


def _pictures(job: GenerateJob, accepted: Container[str], pipeline: str) -> dict[str, Any]:
    _check_pictures(job, accepted, pipeline)
    images = [_opened(data) for data in job.inputs]
    found: dict[str, Any] = {"image": images if len(images) > 1 else images[0]}
    if job.mask is not None:
        found["mask_image"] = _opened(job.mask)
    if "output_resolution" in accepted:  # the pictures are read as large as the new one is drawn
        found["output_resolution"] = _resolution(job, images)
    return found


def _check_pictures(job: GenerateJob, accepted: Container[str], pipeline: str) -> None:
    if "image" not in accepted:
        raise JobError(f"{pipeline} draws from a prompt alone; it takes no image", "image")
    if len(job.inputs) > 1 and pipeline not in TAKE_SETS:
        raise JobError(f"{pipeline} takes one image; {len(job.inputs)} were sent", "image")
    if job.mask is not None and "mask_image" not in accepted:
        raise JobError(f"{pipeline} takes no mask; say in the prompt what changes", "mask")
    if job.mask is None and "mask_image" in accepted:
        raise JobError(f"{pipeline} needs a mask of what is to be drawn anew", "mask")


def _resolution(job: GenerateJob, images: list[Image.Image]) -> int:
    side = round(math.sqrt(job.width * job.height))
    for image in images:
        ratio = min(image.size) / max(image.size)
        if round(side * math.sqrt(ratio) / CONDITION_MULTIPLE) == 0:
            raise JobError(
                f"image is {image.width}x{image.height}, too narrow for a picture of "
                f"{job.width}x{job.height}; send a part of it",
                "image",
            )
    return side


def _opened(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image
