"""Pictures that clients send: nothing is decoded that is too large, and what is read is upright."""

import io
import struct
import zlib

import pytest
from PIL import Image

from deployments import image_input
from deployments.errors import JobError
from deployments.image_input import MAX_INPUT_PIXELS, read_input, read_mask

MANY = 10**6


def data_of(image: Image.Image, format_: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format_, **options)
    return buffer.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def halves(left="red", right="blue", mode="RGB") -> Image.Image:
    image = Image.new(mode, (8, 4), left)
    image.paste(right, (4, 0, 8, 4))
    return image


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG whose header promises a size, and whose body is a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP"])
def test_each_known_format_is_read(format_):
    image = opened(read_input(data_of(halves(), format_), "image", MANY))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (8, 4))


@pytest.mark.parametrize("format_", ["GIF", "BMP", "TIFF", "PPM"])
def test_other_formats_are_refused(format_):
    with pytest.raises(JobError, match="cannot be read as PNG, JPEG or WebP") as caught:
        read_input(data_of(halves(), format_), "image", MANY)
    assert caught.value.param == "image"


@pytest.mark.parametrize("side", [8_000, 20_000, 2**31 - 1])
def test_a_picture_that_claims_too_many_pixels_is_never_decoded(side, monkeypatch):
    def refuse(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(image_input.ImageOps, "exif_transpose", refuse)
    assert side * side > MAX_INPUT_PIXELS
    with pytest.raises(JobError, match=f"the limit is {MAX_INPUT_PIXELS}|Bomb|cannot be read"):
        read_input(png_that_claims(side, side), "image", MANY)


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"http://127.0.0.1/secret.png",
        data_of(halves())[:40],
        png_that_claims(64, 64),
    ],
)
def test_what_is_broken_or_no_picture_is_refused(data):
    with pytest.raises(JobError, match="cannot be read"):
        read_input(data, "image", MANY)


def test_an_empty_or_overlong_file_is_refused(monkeypatch):
    with pytest.raises(JobError, match="image is empty"):
        read_input(b"", "image", MANY)
    monkeypatch.setattr(image_input, "MAX_INPUT_BYTES", 10)
    with pytest.raises(JobError, match="the limit is 10"):
        read_input(data_of(halves()), "image", MANY)


def test_a_picture_that_was_taken_sideways_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned by 90 degrees
    image = opened(read_input(data_of(halves(), "JPEG", exif=exif, quality=100), "image", MANY))
    assert image.size == (4, 8)
    top, bottom = image.getpixel((2, 1)), image.getpixel((2, 6))
    assert top[0] > 200 > bottom[0]
    assert not image.getexif()


def test_transparency_is_kept_and_palettes_are_not():
    clear = halves((1, 2, 3, 0), (4, 5, 6, 255), "RGBA")
    assert opened(read_input(data_of(clear), "image", MANY)).mode == "RGBA"
    paletted = halves().convert("P")
    assert opened(read_input(data_of(paletted), "image", MANY)).mode == "RGB"


def test_a_large_picture_is_made_as_small_as_the_server_draws_and_keeps_its_shape():
    image = opened(read_input(data_of(Image.new("RGB", (400, 100))), "image", 2500))
    assert image.size == (100, 25)
    small = opened(read_input(data_of(Image.new("RGB", (40, 10))), "image", 2500))
    assert small.size == (40, 10)


def test_what_is_transparent_in_a_mask_is_drawn_anew():
    picture = read_input(data_of(halves()), "image", MANY)
    clear_right = halves((0, 0, 0, 255), (0, 0, 0, 0), "RGBA")
    mask = opened(read_mask(data_of(clear_right), picture, MANY))
    assert (mask.mode, mask.size) == ("L", (8, 4))
    assert (mask.getpixel((0, 0)), mask.getpixel((7, 0))) == (0, 255)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Image.new("RGB", (8, 4)), "mask is opaque"),
        (Image.new("RGBA", (4, 8)), "mask is 4x8; make it as large as the first image"),
    ],
)
def test_a_mask_that_cannot_be_meant_is_refused(mask, words):
    picture = read_input(data_of(halves()), "image", MANY)
    with pytest.raises(JobError, match=words) as caught:
        read_mask(data_of(mask), picture, MANY)
    assert caught.value.param == "mask"


def test_a_mask_shrinks_with_its_picture():
    picture = read_input(data_of(Image.new("RGB", (400, 100))), "image", 2500)
    mask = data_of(Image.new("RGBA", (400, 100)))
    assert opened(read_mask(mask, picture, 2500)).size == opened(picture).size
