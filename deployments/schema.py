"""What clients write and read: OpenAI's images API, with diffusers' own fields beside it.

Wire shapes only: limits and defaults belong to ``admission``.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MAX_SEED = 2**53 - 1  # what JSON carries exactly everywhere


class ImageRequest(BaseModel):
    """A request for pictures."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str
    model: str | None = None
    n: int = 1
    size: str = "auto"
    response_format: str = "b64_json"
    output_format: str = "png"
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    user: str | None = None
    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    # OpenAI's, and without effect here: answered with a warning.
    background: str | None = None
    moderation: str | None = None
    output_compression: int | None = None
    quality: str | None = None
    style: str | None = None
    stream: bool | None = None


WITHOUT_EFFECT = ("background", "moderation", "output_compression", "quality", "style")


class ImageData(BaseModel):
    """One picture, and the seed that draws it again."""

    b64_json: str
    seed: int


class ImagesAnswer(BaseModel):
    """The pictures of one request."""

    created: int
    data: list[ImageData]
    output_format: str
    size: str
    replica: str
    seconds: float
    residency: dict[str, Any]
    warnings: list[str]


def describe(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """One of pydantic's findings as (message, name of the field)."""
    path = [str(part) for part in error["loc"] if part != "body"]
    param = ".".join(path) or None
    if error["type"] == "extra_forbidden":
        return f"unknown field {param!r}; known: {', '.join(ImageRequest.model_fields)}", param
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}", None
    return f"{param or 'the body'}: {error['msg']}", param
