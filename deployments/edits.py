"""The pictures of a request that edits: read once, small and upright from then on.

Knows what an edit takes; decoding is ``image_input``'s.
"""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from PIL import Image

from deployments.errors import JobError
from deployments.image_input import MAX_INPUTS, read_input, read_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What is to be edited, and where."""

    inputs: tuple[bytes, ...]  # PNG
    mask: bytes | None
    shape: tuple[int, int]  # width and height of the last picture

    @classmethod
    async def read(cls, pictures: Sequence[bytes], mask: bytes | None, max_pixels: int) -> Self:
        """On a thread: decoding a large picture would hold up every other request."""
        return await asyncio.to_thread(cls._read, pictures, mask, max_pixels)

    @classmethod
    def _read(cls, pictures: Sequence[bytes], mask: bytes | None, max_pixels: int) -> Self:
        if not 1 <= len(pictures) <= MAX_INPUTS:
            raise JobError(f"{len(pictures)} images to edit; send 1 to {MAX_INPUTS}", "image")
        inputs = tuple(read_input(picture, "image", max_pixels) for picture in pictures)
        with Image.open(io.BytesIO(inputs[-1])) as last:
            shape = last.size
        where = None if mask is None else read_mask(mask, inputs[0], max_pixels)
        return cls(inputs=inputs, mask=where, shape=shape)
