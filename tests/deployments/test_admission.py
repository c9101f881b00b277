"""From a request to a job: every limit is held and named, every default filled in."""

import pytest

from deployments.admission import admit, read_request, warnings_of
from deployments.config import AppConfig
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
    assert (job.request_id, job.output_format) == ("id", "png")


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
    )
    assert (job.images, job.width, job.height, job.seed, job.steps) == (2, 5, 20, 0, 9)
    assert (job.negative_prompt, job.guidance_scale, job.true_cfg_scale) == ("blue", 3.0, 2.5)


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
        ({"response_format": "url"}, "response_format", "only 'b64_json'"),
        ({"output_format": "webp"}, "output_format", "only 'png'"),
        ({"stream": True}, "stream", "not streamed"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"seed": 2**53}, "seed", "less than or equal"),
        ({"n": "2"}, "n", "integer"),
        ({"prompt": None}, "prompt", "string"),
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
    assert warnings_of(read_request({"prompt": "a", "user": "me"})) == ()
