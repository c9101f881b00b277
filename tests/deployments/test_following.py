"""The events of a job: every reader gets each step, and a reader who leaves stops what it began."""

import asyncio

import pytest

from deployments.errors import JobFailed
from deployments.following import Feed, follow, unheard
from deployments.messages import GenerateJob, GenerateResult, Preview, StepEvent
from tests.deployments.fake_backend import FakeBackend


def job(**changes) -> GenerateJob:
    values = {"request_id": "r", "prompt": "p", "width": 8, "height": 8, "steps": 4, "seed": 1}
    return GenerateJob(**{**values, **changes})


def step(number: int, **fields) -> StepEvent:
    return StepEvent(step=number, of=4, **fields)


async def read(feed: Feed) -> list[int]:
    return [event.step async for event in feed.read()]


def test_a_job_is_followed_step_by_step_up_to_its_result():
    async def run():
        return [message async for message in follow(FakeBackend(), job(), None)]

    *events, result = asyncio.run(run())
    assert [(event.step, event.of) for event in events] == [(n, 4) for n in (1, 2, 3, 4)]
    assert isinstance(result, GenerateResult)


def test_an_error_comes_after_the_steps_before_it():
    async def run():
        backend = FakeBackend()
        backend.error, backend.error_after = JobFailed("no"), 2
        messages = follow(backend, job(), None)
        seen = [(await anext(messages)).step for _ in range(2)]
        with pytest.raises(JobFailed):
            await anext(messages)
        return seen

    assert asyncio.run(run()) == [1, 2]


def test_a_follower_who_leaves_stops_the_job_before_it_is_gone():
    async def run():
        backend = FakeBackend()
        backend.step_s = 0.01
        messages = follow(backend, job(steps=1000), None)
        await anext(messages)
        await messages.aclose()
        return backend

    backend = asyncio.run(run())
    assert backend.stopped == ["r"]
    assert backend.feeds == {}


def test_every_reader_gets_each_step_and_a_late_one_begins_with_the_latest():
    async def run():
        feed = Feed(unheard)
        first = asyncio.create_task(read(feed))
        await asyncio.sleep(0)
        feed.tell(step(1))
        feed.tell(step(2))
        late = asyncio.create_task(read(feed))
        await asyncio.sleep(0)
        feed.tell(step(3))
        feed.end("served")
        return await first, await late, await read(feed)

    assert asyncio.run(run()) == ([1, 2, 3], [2, 3], [3])


def test_a_preview_that_is_made_again_is_told_of_once():
    told: list[StepEvent] = []
    feed = Feed(told.append)
    one = Preview(data=b"a", image=0, index=0)
    for number in (1, 2, 1):  # the third is of a second attempt
        feed.tell(step(number, preview=one if number == 1 else None))
    assert [event.step for event in told] == [1, 2, 1]
    assert [event.preview for event in told] == [one, None, None]
