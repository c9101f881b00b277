"""A picture as bytes: the asked format, nothing but pixels, and equal bytes for equal pixels."""

import io

import pytest
from PIL import Image

from deployments.images import FORMATS, encode, on_white

RAMP = Image.linear_gradient("L").resize((64, 32)).convert("RGB")


def read(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def half_clear() -> Image.Image:
    """Red on the left, fully transparent on the right."""
    image = Image.new("RGBA", (8, 4), (255, 0, 0, 255))
    image.paste((9, 9, 9, 0), (4, 0, 8, 4))
    return image


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_what_it_says_and_holds_no_metadata(name):
    twin = RAMP.copy()
    twin.info = {"dpi": (300, 300), "comment": "secret", "exif": b"Exif\0\0secret"}
    data = encode(twin, name)
    assert data == encode(RAMP, name)
    assert b"secret" not in data
    assert (read(data).format, read(data).size) == (name.upper(), RAMP.size)


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_less_quality_gives_fewer_bytes(name):
    noise = Image.effect_noise((64, 64), 80).convert("RGB")
    assert len(encode(noise, name, 10)) < len(encode(noise, name, 90)) < len(encode(noise, name))
    assert read(encode(noise, name, 0)).size == (64, 64)


def test_png_keeps_every_pixel_and_its_transparency():
    assert read(encode(half_clear())).convert("RGBA").tobytes() == half_clear().tobytes()


def test_what_is_transparent_becomes_white_where_it_may_not_be():
    for opaque in (encode(half_clear(), background="opaque"), encode(half_clear(), "jpeg")):
        image = read(opaque)
        assert image.mode == "RGB"
        assert image.getpixel((7, 1)) == (255, 255, 255)
        assert max(abs(a - b) for a, b in zip(image.getpixel((0, 1)), (255, 0, 0))) < 3  # noqa: B905


def test_an_opaque_picture_stays_as_it_is_on_white():
    assert on_white(RAMP).tobytes() == RAMP.tobytes()
