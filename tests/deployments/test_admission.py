"""From a request to a job: every limit is held and named, every default filled in."""

import pytest

from deployments.admission import admit, read_request, warnings_of
from deployments.config import AppConfig
from deployments.edits import Edit
from deployments.errors import JobError, ModelNotFound

CONFIG = AppConfig.model_validate(
    {
        "model": {"name": "demo"},
        "limits": {"max_pixels": 100, "max_images": 2, "max_steps": 9, "max_prompt_chars": 20},
        "defaults": {"size": "10x8", "steps": 4},
    }
)


def job_of(**fields):
    return admit(read_request({"prompt": "a circle", **fields}), "id", CONFIG)


def test_a_bare_prompt_gets_every_default():
    job = job_of()
    assert (job.width, job.height, job.steps, job.images) == (10, 8, 4, 1)
    assert (job.guidance_scale, job.true_cfg_scale, job.negative_prompt) == (None, None, None)
    assert (job.request_id, job.output_format, job.output_compression) == ("id", "png", 100)
    assert (job.background, job.partial_images, job.inputs, job.mask) == ("auto", 0, (), None)


def test_null_means_that_a_field_is_not_given():
    fields = ("n", "size", "output_format", "stream", "quality", "seed", "background", "svg")
    job = job_of(**dict.fromkeys(fields))
    assert (job.images, job.width, job.height, job.output_format) == (1, 10, 8, "png")


def test_every_field_reaches_the_job():
    job = job_of(
        model="demo",
        n=2,
        size="5x20",
        seed=0,
        user="me",
        negative_prompt="blue",
        num_inference_steps=9,
        guidance_scale=3,
        true_cfg_scale=2.5,
        output_format="webp",
        output_compression=40,
        background="opaque",
        stream=True,
        partial_images=2,
        safety_identifier="me",
    )
    assert (job.images, job.width, job.height, job.seed, job.steps) == (2, 5, 20, 0, 9)
    assert (job.negative_prompt, job.guidance_scale, job.true_cfg_scale) == ("blue", 3.0, 2.5)
    assert (job.output_format, job.output_compression) == ("webp", 40)
    assert (job.background, job.partial_images) == ("opaque", 2)


def test_without_a_seed_each_request_draws_anew():
    assert len({job_of().seed for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 3}, "n", "give 1 to 2"),
        ({"n": 0}, "n", "give 1 to 2"),
        ({"size": "11x10"}, "size", "110 pixels; the limit is 100"),
        ({"size": "big"}, "size", "WIDTHxHEIGHT"),
        ({"num_inference_steps": 10}, "num_inference_steps", "give 1 to 9"),
        ({"num_inference_steps": 0}, "num_inference_steps", "give 1 to 9"),
        ({"prompt": "x" * 21}, "prompt", "21 characters; the limit is 20"),
        ({"negative_prompt": "x" * 21}, "negative_prompt", "the limit is 20"),
        ({"prompt": "  "}, "prompt", "empty"),
        ({"prompt": "a \ud800"}, "prompt", "lone surrogate"),
        ({"negative_prompt": "\udfff"}, "negative_prompt", "lone surrogate"),
        ({"response_format": "url"}, "response_format", "only 'b64_json'"),
        ({"output_format": "gif"}, "output_format", "give png, jpeg, webp"),
        ({"output_compression": 50}, "output_compression", "leave it out for png"),
        ({"output_compression": 101}, "output_compression", "less than or equal to 100"),
        ({"output_format": "jpeg", "background": "transparent"}, "background", "ask for png"),
        ({"background": "green"}, "background", "'auto', 'opaque' or 'transparent'"),
        ({"partial_images": 1}, "partial_images", "for stream: true"),
        ({"stream": True, "partial_images": 4}, "partial_images", "less than or equal to 3"),
        ({"quality": "best"}, "quality", "'low', 'medium', 'high'"),
        ({"frame_count": 3}, "frame_count", "known but not supported here"),
        ({"svg": {"model": "x"}}, "svg", "known but not supported here"),
        ({"seed": 2**53 - 1, "n": 2}, "seed", "give a smaller seed"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"seed": 2**53}, "seed", "less than or equal"),
        ({"n": "2"}, "n", "integer"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": 7}, "prompt", "string"),
        ({"guidance_scale": float("nan")}, "guidance_scale", "finite"),
        ({"true_cfg_scale": float("inf")}, "true_cfg_scale", "finite"),
        ({"steps": 3}, "steps", "unknown field 'steps'"),
    ],
)
def test_a_refusal_names_the_field_and_the_limit(fields, param, words):
    with pytest.raises(JobError, match=words) as caught:
        job_of(**fields)
    assert caught.value.param == param


def test_a_prompt_is_needed():
    with pytest.raises(JobError, match="prompt: Field required"):
        read_request({})


def test_another_model_is_not_found():
    with pytest.raises(ModelNotFound, match="this server has 'demo'"):
        job_of(model="other")


def test_an_option_without_effect_is_said():
    request = read_request({"prompt": "a", "quality": "high", "style": "vivid"})
    assert warnings_of(request) == ("quality has no effect", "style has no effect")
    for silent in ({"user": "me"}, {"quality": "auto", "moderation": "auto"}):
        assert warnings_of(read_request({"prompt": "a", **silent})) == ()


def test_a_form_may_write_numbers_as_text():
    request = read_request({"prompt": "a", "n": "2", "stream": "true"}, strict=False)
    assert (request.n, request.stream) == (2, True)
    with pytest.raises(JobError, match=r"n: .*integer"):
        read_request({"prompt": "a", "n": "two"}, strict=False)


LARGE = CONFIG.model_copy(
    update={
        "limits": CONFIG.limits.model_copy(update={"max_pixels": 128 * 128}),
        "defaults": CONFIG.defaults.model_copy(update={"size": "128x128"}),
    }
)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((50, 50), (128, 128)),
        ((4000, 3000), (160, 96)),  # 148 x 111 in multiples of 32
        ((300, 600), (96, 160)),  # 91 x 181 would be 96 x 192, which is over the limit
        ((1, 99), (32, 512)),
    ],
)
def test_an_edit_of_no_given_size_keeps_the_shape_of_its_picture(shape, size):
    edit = Edit(inputs=(b"png",), mask=b"where", shape=shape)
    job = admit(read_request({"prompt": "a", "n": 1}), "id", LARGE, edit)
    assert (job.width, job.height) == size
    assert (job.inputs, job.mask) == ((b"png",), b"where")


def test_an_edit_where_nothing_of_its_shape_fits_has_the_default_size():
    edit = Edit(inputs=(b"png",), mask=None, shape=(9, 4))
    job = admit(read_request({"prompt": "a"}), "id", CONFIG, edit)
    assert (job.width, job.height) == (10, 8)
