"""What clients write: OpenAI's images API, with diffusers' own fields beside it.

Wire shapes only: limits and defaults belong to ``admission``. ``answers`` has what they read.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_SEED = 2**53 - 1  # what JSON carries exactly everywhere


class ImageRequest(BaseModel):
    """A request for pictures; null means that a field is not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str
    model: str | None = None
    n: int = 1
    size: str = "auto"
    response_format: str = "b64_json"
    output_format: str = "png"
    output_compression: int = Field(default=100, ge=0, le=100)
    background: Literal["auto", "opaque", "transparent"] = "auto"
    stream: bool = False
    partial_images: int = Field(default=0, ge=0, le=3)
    user: str | None = None
    safety_identifier: str | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = Field(default=None, allow_inf_nan=False)
    true_cfg_scale: float | None = Field(default=None, allow_inf_nan=False)
    # OpenAI's, and without effect here: answered with a warning.
    complexity: Literal["low", "medium", "high"] | None = None
    input_fidelity: Literal["high", "low"] | None = None
    moderation: Literal["low", "auto"] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"] | None = (
        None
    )
    style: Literal["vivid", "natural"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Null is left out; what OpenAI has and this server has not is refused as such."""
        if not isinstance(values, Mapping):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        for name in sorted(NOT_SUPPORTED & set(given)):
            raise ValueError(f"{name} is known but not supported here; leave it out")
        return given


WITHOUT_EFFECT = ("complexity", "input_fidelity", "moderation", "quality", "style")
NOT_SUPPORTED = frozenset({"frame_count", "frame_duration_ms", "markup", "svg"})


def describe(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """One of pydantic's findings as (message, name of the field)."""
    path = [str(part) for part in error["loc"] if part != "body"]
    param = ".".join(path) or None
    if error["type"] == "extra_forbidden":
        return f"unknown field {param!r}; known: {', '.join(ImageRequest.model_fields)}", param
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}", None
    message = error["msg"].removeprefix("Value error, ")
    if param is None and error["type"] == "value_error":
        return message, message.split()[0]
    return f"{param or 'the body'}: {message}", param
