"""From a request to a job: fills in defaults, holds the limits, and names the limit it holds.

It knows the configuration and the wire; no Ray, no HTTP.
"""

import math
import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deployments.config import AppConfig, parse_size
from deployments.edits import Edit
from deployments.errors import JobError, ModelNotFound
from deployments.images import FORMATS
from deployments.messages import GenerateJob
from deployments.schema import MAX_SEED, WITHOUT_EFFECT, ImageRequest, describe

SIDE_MULTIPLE = 32  # of a size chosen here; every stock pipeline draws multiples of it
DEFAULT_SEEDS = 2**31  # a seed chosen here is below


def read_request(values: Mapping[str, Any], *, strict: bool = True) -> ImageRequest:
    """A request from a plain dict; JobError names the field that is wrong.

    Not ``strict``: numbers may come as text, as a form has them.
    """
    try:
        return ImageRequest.model_validate(dict(values), strict=strict)
    except ValidationError as error:
        raise JobError(*describe(error.errors()[0])) from None


def admit(
    request: ImageRequest, request_id: str, config: AppConfig, edit: Edit | None = None
) -> GenerateJob:
    """The complete job, or JobError."""
    _check_model(request.model, config.model.name)
    _check_formats(request)
    _check_limits(request, config)
    width, height = _size(request.size, config, edit)
    return GenerateJob(
        request_id=request_id,
        prompt=request.prompt,
        width=width,
        height=height,
        steps=_steps(request.num_inference_steps, config),
        seed=_seed(request),
        images=request.n,
        negative_prompt=request.negative_prompt,
        guidance_scale=request.guidance_scale,
        true_cfg_scale=request.true_cfg_scale,
        output_format=request.output_format,
        output_compression=request.output_compression,
        background=request.background,
        partial_images=request.partial_images,
        inputs=edit.inputs if edit else (),
        mask=edit.mask if edit else None,
    )


def warnings_of(request: ImageRequest) -> tuple[str, ...]:
    """What the request says that changes nothing."""
    said = [name for name in WITHOUT_EFFECT if getattr(request, name) not in (None, "auto")]
    return tuple(f"{name} has no effect" for name in said)


def _check_model(asked: str | None, served: str) -> None:
    if asked not in (None, served):
        raise ModelNotFound(
            f"the model {asked!r} does not exist; this server has {served!r}", "model"
        )


def _check_formats(request: ImageRequest) -> None:
    if request.response_format != "b64_json":
        raise JobError(
            f"response_format is {request.response_format!r}; only 'b64_json' is served",
            "response_format",
        )
    if request.output_format not in FORMATS:
        raise JobError(
            f"output_format is {request.output_format!r}; give {', '.join(FORMATS)}",
            "output_format",
        )
    if request.output_format == "png" and request.output_compression != 100:
        raise JobError(
            "output_compression is for jpeg and webp; leave it out for png", "output_compression"
        )
    if request.output_format == "jpeg" and request.background == "transparent":
        raise JobError("background is transparent, which jpeg cannot be; ask for png", "background")
    if request.partial_images and not request.stream:
        raise JobError("partial_images is for stream: true; leave it out", "partial_images")


def _check_limits(request: ImageRequest, config: AppConfig) -> None:
    limits = config.limits
    if not 1 <= request.n <= limits.max_images:
        raise JobError(f"n is {request.n}; give 1 to {limits.max_images}", "n")
    for name in ("prompt", "negative_prompt"):
        text = getattr(request, name)
        if text is not None and len(text) > limits.max_prompt_chars:
            raise JobError(
                f"{name} has {len(text)} characters; the limit is {limits.max_prompt_chars}", name
            )
        if text is not None and not _is_unicode(text):
            raise JobError(f"{name} holds half a character (a lone surrogate); send text", name)
    if not request.prompt.strip():
        raise JobError("prompt is empty; say what to draw", "prompt")


def _is_unicode(text: str) -> bool:
    """JSON can say what no text holds, and tokenizers fail on it."""
    return text == text.encode(errors="replace").decode()


def _size(text: str, config: AppConfig, edit: Edit | None) -> tuple[int, int]:
    if text == "auto":
        return _size_like(edit, config) if edit else config.defaults.width_height
    try:
        width, height = parse_size(text)
    except ValueError as error:
        raise JobError(f"{error}, or auto", "size") from None
    if width * height > config.limits.max_pixels:
        raise JobError(
            f"size {text} has {width * height} pixels; the limit is {config.limits.max_pixels}",
            "size",
        )
    return width, height


def _size_like(edit: Edit, config: AppConfig) -> tuple[int, int]:
    """The shape of the last picture, with about as many pixels as the default size."""
    default = config.defaults.width_height
    ratio = math.sqrt(edit.shape[0] / edit.shape[1])
    side = math.sqrt(math.prod(default)) / SIDE_MULTIPLE
    sides = [max(1, round(length)) for length in (side * ratio, side / ratio)]
    while math.prod(sides) * SIDE_MULTIPLE**2 > config.limits.max_pixels:
        if sides == [1, 1]:
            return default
        sides[sides.index(max(sides))] -= 1
    return sides[0] * SIDE_MULTIPLE, sides[1] * SIDE_MULTIPLE


def _seed(request: ImageRequest) -> int:
    """The first image's; the last one's must be one that can be asked for, too."""
    if request.seed is None:
        return secrets.randbelow(DEFAULT_SEEDS)
    if request.seed + request.n - 1 > MAX_SEED:
        raise JobError(f"seed + n is above {MAX_SEED}; give a smaller seed", "seed")
    return request.seed


def _steps(asked: int | None, config: AppConfig) -> int:
    if asked is None:
        return config.defaults.steps
    if not 1 <= asked <= config.limits.max_steps:
        raise JobError(
            f"num_inference_steps is {asked}; give 1 to {config.limits.max_steps}",
            "num_inference_steps",
        )
    return asked
