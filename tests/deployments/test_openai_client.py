"""The unmodified ``openai`` client against the HTTP front: every call, every shape it promises.

The client builds its answers without checking them, so each is checked against its own type here.
"""

import asyncio
import base64
import io
import time

import openai
import pytest
from openai.types import ImageGenCompletedEvent, ImagesResponse
from PIL import Image

from deployments.api import create_api
from deployments.config import AppConfig
from deployments.errors import JobFailed, Overloaded
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.http_server import serving
from tests.deployments.test_api import ARGS
from tests.deployments.test_image_input import data_of, halves

PROMPT = "a red circle"


@pytest.fixture(scope="module")
def running():
    """(client, the backend that draws)."""
    backend = FakeBackend()
    with serving(create_api(AppConfig.model_validate(ARGS), backend)) as address:
        client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
        with client:
            yield client, backend


@pytest.fixture
def client(running):
    client, backend = running
    backend.error, backend.error_after, backend.step_s = None, 0, 0.0
    backend.jobs.clear()
    backend.stopped.clear()
    return client


@pytest.fixture
def backend(running):
    return running[1]


def opened(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def checked(answer):
    """The answer, once every field was found to be of the type that the client declares."""
    type(answer).model_validate(answer.to_dict(mode="json"))
    return answer


def upload(name="picture.png", image=None):
    return (name, data_of(halves() if image is None else image), "image/png")


def mask():
    return upload("mask.png", halves((0, 0, 0, 255), (0, 0, 0, 0), "RGBA"))


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
def test_pictures_come_in_the_asked_format_number_and_size(client, output_format):
    answer = checked(
        client.images.generate(
            prompt=PROMPT, n=2, size="64x32", output_format=output_format, background="opaque"
        )
    )
    assert isinstance(answer, ImagesResponse)
    for image in answer.data:
        drawn = opened(image.b64_json)
        assert (drawn.format, drawn.size) == (output_format.upper(), (64, 32))
    assert (answer.output_format, answer.size) == (output_format, "64x32")
    assert answer.background == "opaque"
    assert answer.created == pytest.approx(time.time(), abs=60)
    first, second = (image.seed for image in answer.data)
    assert second == first + 1


def test_usage_adds_up(client):
    usage = checked(client.images.edit(prompt=PROMPT, image=upload(), n=2)).usage
    assert usage.input_tokens_details.text_tokens == 3
    assert usage.input_tokens_details.image_tokens == 10
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (13, 128, 141)
    assert usage.output_tokens_details.image_tokens == 128


def test_our_own_fields_travel_beside_openais(client, backend):
    answer = client.images.generate(
        prompt=PROMPT,
        model="demo",
        size="auto",
        user="me",
        quality="high",
        response_format="b64_json",
        extra_body={"seed": 7, "num_inference_steps": 3},
    )
    assert (backend.jobs[0].seed, backend.jobs[0].steps) == (7, 3)
    assert answer.data[0].seed == 7
    assert answer.warnings == ["quality has no effect", "slow"]
    assert answer.replica == "one"


def test_a_stream_gives_previews_that_differ_and_then_the_picture(client):
    with client.images.generate(
        prompt=PROMPT, stream=True, partial_images=3, size="64x32", output_format="webp"
    ) as stream:
        *partial, completed = [checked(event) for event in stream]
    assert [event.type for event in partial] == ["image_generation.partial_image"] * 3
    assert [event.partial_image_index for event in partial] == [0, 1, 2]
    assert len({event.b64_json for event in partial}) == 3
    assert completed.type == "image_generation.completed"
    assert isinstance(completed, ImageGenCompletedEvent)
    assert completed.usage.output_tokens == 64
    for event in (*partial, completed):
        assert opened(event.b64_json).format == "WEBP"
        assert (event.size, event.output_format, event.background) == ("64x32", "webp", "auto")


@pytest.mark.parametrize("partial_images", [None, 0])
def test_a_stream_without_previews_is_one_event(client, partial_images):
    stream = client.images.generate(prompt=PROMPT, stream=True, partial_images=partial_images)
    (completed,) = stream
    assert checked(completed).seed == completed.seed


def test_several_streamed_pictures_say_which_they_are(client):
    events = list(client.images.generate(prompt=PROMPT, stream=True, partial_images=1, n=2))
    assert [(event.type.split(".")[1], event.image_index) for event in events] == [
        ("partial_image", 0),
        ("partial_image", 1),
        ("completed", 0),
        ("completed", 1),
    ]


def test_one_picture_or_several_are_edited(client, backend):
    checked(client.images.edit(prompt=PROMPT, image=upload(), size="64x64", n=2))
    checked(client.images.edit(prompt=PROMPT, image=[upload(), upload()]))
    checked(client.images.edit(prompt=PROMPT, image=upload(), mask=mask()))
    assert [len(job.inputs) for job in backend.jobs] == [1, 2, 1]
    assert [job.mask is not None for job in backend.jobs] == [False, False, True]
    assert backend.jobs[0].images == 2


def test_an_edit_is_streamed(client):
    stream = client.images.edit(prompt=PROMPT, image=upload(), stream=True, partial_images=2)
    events = [checked(event) for event in stream]
    kinds = ["image_edit.partial_image", "image_edit.partial_image", "image_edit.completed"]
    assert [event.type for event in events] == kinds


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 9}, "n"), ({"output_format": "gif"}, "output_format"), ({"size": "9x"}, "size")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_the_clients_own_error(client, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(prompt=PROMPT, stream=stream, **fields)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)


def test_what_fails_before_the_first_event_has_its_status(client, backend):
    backend.error = Overloaded("too many")
    with pytest.raises(openai.RateLimitError):
        client.images.generate(prompt=PROMPT, stream=True)


def test_what_fails_later_ends_the_stream_in_an_error(client, backend):
    backend.error, backend.error_after = JobFailed("no picture"), 6
    stream = client.images.generate(prompt=PROMPT, stream=True, partial_images=3)
    assert next(stream).type == "image_generation.partial_image"
    with pytest.raises(openai.APIError, match="no picture"):
        list(stream)


def test_a_client_that_closes_its_stream_stops_the_job(client, backend):
    backend.step_s = 0.01
    stream = client.images.generate(
        prompt=PROMPT, stream=True, partial_images=3, extra_body={"num_inference_steps": 50, "n": 4}
    )
    next(stream)
    stream.close()
    deadline = time.monotonic() + 10
    while not backend.stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert backend.stopped == [backend.jobs[0].request_id]


def test_the_async_client_streams_too(client):
    async def run():
        options = {"base_url": client.base_url, "api_key": "none"}
        async with openai.AsyncOpenAI(**options) as own:
            stream = await own.images.generate(prompt=PROMPT, stream=True, partial_images=1)
            return [event.type async for event in stream]

    kinds = ["image_generation.partial_image", "image_generation.completed"]
    assert asyncio.run(run()) == kinds


def test_the_model_is_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert checked(client.models.retrieve("demo")).owned_by == "tenure"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
