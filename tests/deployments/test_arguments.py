"""A job as arguments of a pipeline: pictures where it takes them, a refusal by name where not."""

import io

import pytest
from PIL import Image

from deployments.arguments import arguments_of
from deployments.errors import JobError
from deployments.messages import GenerateJob

PLAIN = ("prompt", "width", "height", "num_inference_steps")
EDITS = (*PLAIN, "image")
INPAINTS = (*EDITS, "mask_image")


def png(width=64, height=64, colour="red", mode="RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def job(**changes) -> GenerateJob:
    values = {"request_id": "r", "prompt": "p", "width": 64, "height": 64, "steps": 4, "seed": 1}
    return GenerateJob(**{**values, **changes})


def test_a_prompt_alone_gives_no_picture_to_the_pipeline():
    found = arguments_of(job(), EDITS, "P")
    assert found == {"prompt": "p", "width": 64, "height": 64, "num_inference_steps": 4}


def test_one_picture_is_given_alone_and_several_as_one_set():
    found = arguments_of(job(inputs=(png(),)), EDITS, "P")
    assert found["image"].getpixel((0, 0)) == (255, 0, 0)
    two = job(inputs=(png(), png(colour="blue")))
    first, last = arguments_of(two, EDITS, "QwenImage21Pipeline")["image"]
    assert (first.getpixel((0, 0)), last.getpixel((0, 0))) == ((255, 0, 0), (0, 0, 255))


def test_a_mask_is_given_where_the_pipeline_has_one():
    found = arguments_of(job(inputs=(png(),), mask=png(mode="L", colour=255)), INPAINTS, "P")
    assert found["mask_image"].mode == "L"


def test_pictures_are_read_as_large_as_the_new_one_is_drawn():
    accepted = (*EDITS, "output_resolution")
    found = arguments_of(job(inputs=(png(),), width=128, height=32), accepted, "P")
    assert found["output_resolution"] == 64


@pytest.mark.parametrize(
    ("changes", "accepted", "param", "words"),
    [
        ({"guidance_scale": 3.0}, PLAIN, None, "P has no guidance_scale; leave it out"),
        ({"inputs": (png(),)}, PLAIN, "image", "draws from a prompt alone"),
        ({"inputs": (png(), png())}, EDITS, "image", "takes one image; 2 were sent"),
        ({"inputs": (png(),), "mask": png(mode="L")}, EDITS, "mask", "takes no mask"),
        ({"inputs": (png(),)}, INPAINTS, "mask", "needs a mask"),
        (
            {"inputs": (png(1, 64),)},
            (*EDITS, "output_resolution"),
            "image",
            "1x64, too narrow for a picture of 64x64",
        ),
    ],
)
def test_what_a_pipeline_cannot_take_is_refused_by_name(changes, accepted, param, words):
    with pytest.raises(JobError, match=words) as caught:
        arguments_of(job(**changes), accepted, "P")
    assert caught.value.param == param
