"""What clients read: OpenAI's answers and stream events, with our own fields beside them.

Wire shapes only; they are made from a job and what was drawn.
"""

import base64
import time
from typing import Any

from pydantic import BaseModel

from deployments.messages import DrawnImage, GenerateJob, GenerateResult, Preview


class InputTokens(BaseModel):
    """What was read, by kind."""

    text_tokens: int
    image_tokens: int


class OutputTokens(BaseModel):
    """What was drawn, by kind."""

    text_tokens: int = 0
    image_tokens: int


class Usage(BaseModel):
    """Tokens as the pipeline counts them: of its tokenizer, and positions of its latents."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int

    @classmethod
    def of(cls, tokens: dict[str, int]) -> "Usage":
        text, image, output = (tokens.get(kind, 0) for kind in ("text", "image", "output"))
        return cls(
            input_tokens=text + image,
            input_tokens_details=InputTokens(text_tokens=text, image_tokens=image),
            output_tokens=output,
            output_tokens_details=OutputTokens(image_tokens=output),
            total_tokens=text + image + output,
        )


class ImageData(BaseModel):
    """One picture, and the seed that draws it again."""

    b64_json: str
    seed: int


class ImagesAnswer(BaseModel):
    """The pictures of one request."""

    created: int
    background: str | None = None
    data: list[ImageData]
    output_format: str
    size: str
    usage: Usage
    replica: str
    seconds: float
    residency: dict[str, Any]
    warnings: list[str]


def images_answer(
    job: GenerateJob, result: GenerateResult, warnings: tuple[str, ...]
) -> ImagesAnswer:
    """A finished job as the client reads it."""
    return ImagesAnswer(
        created=int(time.time()),
        background=None if job.background == "auto" else job.background,
        data=[ImageData(b64_json=_text(image.data), seed=image.seed) for image in result.images],
        output_format=job.output_format,
        size=f"{job.width}x{job.height}",
        usage=Usage.of(result.tokens),
        replica=result.replica,
        seconds=round(result.seconds, 3),
        residency=result.usage,
        warnings=[*warnings, *result.warnings],
    )


def partial_event(job: GenerateJob, preview: Preview) -> dict[str, Any]:
    """``image_generation.partial_image`` or ``image_edit.partial_image``."""
    return {
        **_event(job, "partial_image", preview.data),
        "partial_image_index": preview.index,
        "image_index": preview.image,
        "seed": job.seeds[preview.image],
    }


def completed_event(
    job: GenerateJob, result: GenerateResult, index: int, warnings: tuple[str, ...]
) -> dict[str, Any]:
    """``image_generation.completed`` or ``image_edit.completed``, of image ``index``."""
    image: DrawnImage = result.images[index]
    return {
        **_event(job, "completed", image.data),
        "usage": Usage.of(result.tokens).model_dump(),
        "image_index": index,
        "seed": image.seed,
        "replica": result.replica,
        "seconds": round(result.seconds, 3),
        "residency": result.usage,
        "warnings": [*warnings, *result.warnings],
    }


def _event(job: GenerateJob, what: str, data: bytes) -> dict[str, Any]:
    family = "image_edit" if job.inputs else "image_generation"
    return {
        "type": f"{family}.{what}",
        "b64_json": _text(data),
        "background": job.background,
        "created_at": int(time.time()),
        "output_format": job.output_format,
        "quality": "auto",
        "size": f"{job.width}x{job.height}",
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
