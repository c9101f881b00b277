"""A picture as bytes: equal pixels give equal bytes.

Knows Pillow only; no torch, no job.
"""

import io
from typing import Any

from PIL import Image

FORMATS = ("png", "jpeg", "webp")
PNG_LEVEL = 6  # zlib's own default, named so that it never changes under us


def encode_png(image: Image.Image) -> bytes:
    """PNG without any metadata, so that equal pixels give equal bytes."""
    return encode(image)


def encode(
    image: Image.Image, output_format: str = "png", quality: int = 100, background: str = "auto"
) -> bytes:
    """One of FORMATS, without any metadata; ``quality`` in percent is of jpeg and webp alone."""
    opaque = output_format == "jpeg" or background == "opaque"
    bare = on_white(image) if opaque else image.copy()
    bare.info = {}
    options: dict[str, dict[str, Any]] = {
        "png": {"compress_level": PNG_LEVEL},
        "jpeg": {"quality": max(1, quality), "subsampling": 0},  # colours as sharp as the rest
        "webp": {"quality": quality},
    }
    buffer = io.BytesIO()
    bare.save(buffer, format=output_format.upper(), **options[output_format])
    return buffer.getvalue()


def on_white(image: Image.Image) -> Image.Image:
    """Without an alpha channel."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    alone = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(alone, mask=alone.getchannel("A"))
    return white
