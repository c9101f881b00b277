"""Pictures that clients send: limited before they are decoded, turned upright, made small.

Knows Pillow and limits; nothing of jobs. Nothing is ever fetched: a picture is bytes.
"""

import io
import math
import threading

from PIL import Image, ImageOps

from deployments.errors import JobError

ACCEPTED = ("PNG", "JPEG", "WEBP")
MAX_INPUTS = 16
MAX_INPUT_BYTES = 50 << 20
MAX_INPUT_PIXELS = 50_000_000  # 200 MB once decoded
FAST_PNG = 1  # zlib's level for what only travels between our processes

_one_at_a_time = threading.Lock()  # many large pictures at once would fill the driver's memory


def read_input(data: bytes, name: str, max_pixels: int) -> bytes:
    """The picture as PNG, upright, RGB or RGBA, of at most ``max_pixels``; JobError names it."""
    with _one_at_a_time:
        return _png(_small(_decoded(data, name), max_pixels))


def read_mask(data: bytes, picture: bytes, max_pixels: int) -> bytes:
    """OpenAI's mask as diffusers reads it: what is transparent there is white, and drawn anew."""
    with _one_at_a_time, Image.open(io.BytesIO(picture)) as first:
        mask = _decoded(data, "mask")
        if mask.mode != "RGBA":
            raise JobError("mask is opaque; what is to be drawn anew is transparent there", "mask")
        small = _small(ImageOps.invert(mask.getchannel("A")), max_pixels)
        if small.size != first.size:
            raise JobError(f"mask is {_shape(mask)}; make it as large as the first image", "mask")
    return _png(small)


def _decoded(data: bytes, name: str) -> Image.Image:
    if not data:
        raise JobError(f"{name} is empty; send a picture", name)
    if len(data) > MAX_INPUT_BYTES:
        raise JobError(f"{name} has {len(data)} bytes; the limit is {MAX_INPUT_BYTES}", name)
    try:
        with Image.open(io.BytesIO(data), formats=ACCEPTED) as image:  # reads the header only
            if image.width * image.height <= MAX_INPUT_PIXELS:
                upright = ImageOps.exif_transpose(image)
                return upright.convert("RGBA" if upright.has_transparency_data else "RGB")
            said = f"is {_shape(image)}; the limit is {MAX_INPUT_PIXELS} pixels"
    except Exception as error:  # whatever a decoder stumbles over is the picture's fault
        said = f"cannot be read as PNG, JPEG or WebP ({type(error).__name__})"
    raise JobError(f"{name} {said}", name)


def _small(image: Image.Image, max_pixels: int) -> Image.Image:
    """The same shape with at most so many pixels."""
    scale = math.sqrt(max_pixels / (image.width * image.height))
    if scale >= 1:
        return image
    width, height = (max(1, int(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.info = {}
    image.save(buffer, format="PNG", compress_level=FAST_PNG)
    return buffer.getvalue()


def _shape(image: Image.Image) -> str:
    return f"{image.width}x{image.height}"
