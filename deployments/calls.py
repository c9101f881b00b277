"""Requests by handle: plain dicts in and out, so that the caller needs nothing of this package.

Knows the fields that HTTP carries in headers and files; what draws is the driver's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from deployments.admission import admit, read_request, warnings_of
from deployments.config import AppConfig
from deployments.edits import Edit
from deployments.errors import JobError
from deployments.messages import GenerateJob, GenerateResult, StepEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, complete."""

    job: GenerateJob
    pin: str | None  # the replica that has to draw it
    warnings: tuple[str, ...]

    def answer(self, result: GenerateResult) -> dict[str, Any]:
        """The pictures under the name of their format: ``{"png": bytes, "seed": 7}``."""
        return {
            "images": [
                {self.job.output_format: image.data, "seed": image.seed} for image in result.images
            ],
            "usage": result.usage,
            "tokens": result.tokens,
            "replica": result.replica,
            "warnings": [*self.warnings, *result.warnings],
        }

    def told(self, message: StepEvent | GenerateResult) -> dict[str, Any]:
        """A step as a dict, or the answer."""
        if isinstance(message, GenerateResult):
            return self.answer(message)
        step: dict[str, Any] = {
            "step": message.step,
            "of": message.of,
            "seconds_left": round(message.left_s, 3),
        }
        if (preview := message.preview) is not None:
            step["preview"] = {
                self.job.output_format: preview.data,
                "image": preview.image,
                "index": preview.index,
            }
        return step


async def read_call(request: Mapping[str, Any], config: AppConfig, *, streams: bool) -> Call:
    """JobError where a field cannot be meant. ``streams``: steps are told."""
    values = dict(request)
    request_id = values.pop("request_id", None) or uuid4().hex
    pin = values.pop("replica", None)
    edit = await _edit(values.pop("image", None), values.pop("mask", None), config)
    if values.pop("stream", streams) not in (None, streams):
        raise JobError("by handle, call stream for steps and generate for the answer", "stream")
    wire = read_request({**values, "stream": streams})
    job = admit(wire, request_id, config, edit)
    return Call(job=job, pin=pin, warnings=warnings_of(wire))


async def _edit(image: Any, mask: Any, config: AppConfig) -> Edit | None:
    if image is None and mask is None:
        return None
    pictures = image if isinstance(image, list | tuple) else [image]
    for name, data in [*(("image", picture) for picture in pictures), ("mask", mask or b"")]:
        if not isinstance(data, bytes):
            raise JobError(f"{name} is {type(data).__name__}; give the bytes of a picture", name)
    return await Edit.read(pictures, mask, config.limits.max_pixels)
