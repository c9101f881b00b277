"""The driver's jobs on their way: steps by handle, for readers elsewhere, and over HTTP."""

import asyncio
import json
import pickle

import pytest
from starlette.testclient import TestClient

from deployments import driver as driver_module
from deployments.driver import Driver
from deployments.fleet import Fleet
from deployments.messages import Preview, StepEvent
from tests.deployments.fake_backend import png_of, state_of
from tests.deployments.test_driver import FakeHandle, FakeStream, config, draws, hangs
from tests.deployments.test_image_input import data_of, halves


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    own = Fleet()
    monkeypatch.setattr(driver_module, "FLEET", own)
    own.report(state_of("one").to_dict())
    return own


def previews(job) -> FakeStream:
    """One step with a preview, one without, then what ``draws`` gives."""
    seen = Preview(data=png_of(8, 8, 9), image=0, index=0)
    steps = [StepEvent(step=1, of=2, left_s=0.5, preview=seen), StepEvent(step=2, of=2)]
    return FakeStream([*(step.to_dict() for step in steps), draws(job).messages[-1]])


def streamed(handle, **request) -> list[dict]:
    async def run():
        driver = Driver(config(), handle)
        return [part async for part in driver.stream({"prompt": "a circle", **request})]

    return asyncio.run(run())


def test_another_program_is_told_each_step_and_then_the_answer():
    first, last, answer = streamed(FakeHandle(previews), seed=4, partial_images=1, replica="one")
    preview = first.pop("preview")
    assert first == {"step": 1, "of": 2, "seconds_left": 0.5}
    assert last == {"step": 2, "of": 2, "seconds_left": 0.0}
    assert (preview["image"], preview["index"], preview["png"][:4]) == (0, 0, b"\x89PNG")
    assert [image["seed"] for image in answer["images"]] == [4]
    assert (answer["replica"], answer["warnings"]) == ("one", ["w"])


@pytest.mark.parametrize(
    ("request_", "kind", "words"),
    [
        ({"size": "99x99"}, ValueError, "the limit is 100"),
        ({"replica": "gone"}, LookupError, "gone"),
        ({"stream": False}, ValueError, "call stream for steps and generate for the answer"),
        ({"image": "http://127.0.0.1/secret.png"}, ValueError, "image is str; give the bytes"),
        ({"mask": b"x"}, ValueError, "image is NoneType"),
    ],
)
def test_another_program_gets_built_in_errors(request_, kind, words):
    with pytest.raises(kind, match=words) as caught:
        streamed(FakeHandle(draws), **request_)
    assert type(caught.value) is kind
    pickle.dumps(caught.value)


def test_pictures_in_any_format_come_under_its_name_and_pictures_to_edit_reach_the_replica():
    handle = FakeHandle(draws)
    (*_, answer) = streamed(handle, output_format="webp", image=data_of(halves()), size="8x8")
    assert set(answer["images"][0]) == {"webp", "seed"}
    assert len(handle.jobs[0].inputs) == 1


def test_a_program_that_leaves_stops_its_job():
    async def run():
        handle = FakeHandle(hangs)
        driver = Driver(config(), handle)
        steps = driver.stream({"prompt": "a circle", "request_id": "mine"})
        await anext(steps)
        await steps.aclose()
        return handle.streams[0].cancelled, driver.cancel("mine")

    assert asyncio.run(run()) == (True, False)


def events_of(text: str) -> list[dict]:
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_reader_elsewhere_is_told_of_each_step_and_of_the_end():
    async def run():
        driver = Driver(config(), FakeHandle(hangs))
        drawing = asyncio.create_task(driver.generate({"prompt": "a", "request_id": "mine"}))
        await asyncio.sleep(0.01)
        feed = driver.feed("mine")
        reading = asyncio.create_task(_all_of(feed))
        await asyncio.sleep(0.01)
        driver.cancel("mine")
        with pytest.raises(RuntimeError, match="cancelled"):
            await drawing
        return await reading, feed.outcome, driver.feed("mine")

    assert asyncio.run(run()) == ([1], "cancelled", None)


async def _all_of(feed) -> list[int]:
    return [event.step async for event in feed.read()]


def test_over_http_a_replicas_previews_become_openais_events():
    client = TestClient(Driver(config(), FakeHandle(previews)).__serve_build_asgi_app__())
    body = {"prompt": "a circle", "stream": True, "partial_images": 1, "seed": 5}
    answer = client.post("/v1/images/generations", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    partial, completed = events_of(answer.text)
    assert partial["type"] == "image_generation.partial_image"
    assert (completed["type"], completed["seed"]) == ("image_generation.completed", 5)
