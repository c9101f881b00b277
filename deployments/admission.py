"""From a request to a job: fills in defaults, holds the limits, and names the limit it holds.

It knows the configuration and the wire; no Ray, no HTTP.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deployments.config import AppConfig, parse_size
from deployments.errors import JobError, ModelNotFound
from deployments.messages import GenerateJob
from deployments.schema import WITHOUT_EFFECT, ImageRequest, describe


def read_request(values: Mapping[str, Any]) -> ImageRequest:
    """A request from a plain dict; JobError names the field that is wrong."""
    try:
        return ImageRequest.model_validate(dict(values))
    except ValidationError as error:
        raise JobError(*describe(error.errors()[0])) from None


def admit(request: ImageRequest, request_id: str, config: AppConfig) -> GenerateJob:
    """The complete job, or JobError."""
    _check_model(request.model, config.model.name)
    _check_formats(request)
    _check_limits(request, config)
    width, height = _size(request.size, config)
    return GenerateJob(
        request_id=request_id,
        prompt=request.prompt,
        width=width,
        height=height,
        steps=_steps(request.num_inference_steps, config),
        seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
        images=request.n,
        negative_prompt=request.negative_prompt,
        guidance_scale=request.guidance_scale,
        true_cfg_scale=request.true_cfg_scale,
        output_format=request.output_format,
    )


def warnings_of(request: ImageRequest) -> tuple[str, ...]:
    """What the request says that changes nothing."""
    said = [name for name in WITHOUT_EFFECT if getattr(request, name) is not None]
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
    if request.output_format != "png":
        raise JobError(
            f"output_format is {request.output_format!r}; only 'png' is served", "output_format"
        )
    if request.stream:
        raise JobError("stream is true; pictures are not streamed, leave it out", "stream")


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
    if not request.prompt.strip():
        raise JobError("prompt is empty; say what to draw", "prompt")


def _size(text: str, config: AppConfig) -> tuple[int, int]:
    if text == "auto":
        return config.defaults.width_height
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


def _steps(asked: int | None, config: AppConfig) -> int:
    if asked is None:
        return config.defaults.steps
    if not 1 <= asked <= config.limits.max_steps:
        raise JobError(
            f"num_inference_steps is {asked}; give 1 to {config.limits.max_steps}",
            "num_inference_steps",
        )
    return asked
