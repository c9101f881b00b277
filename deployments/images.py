"""A picture as bytes: equal pixels give equal bytes.

Knows Pillow only; no torch, no job.
"""

import io

from PIL.Image import Image

PNG_LEVEL = 6  # zlib's own default, named so that it never changes under us


def encode_png(image: Image) -> bytes:
    """PNG without any metadata, so that equal pixels give equal bytes."""
    bare = image.copy()
    bare.info = {}
    buffer = io.BytesIO()
    bare.save(buffer, format="PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()
