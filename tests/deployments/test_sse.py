"""Server-sent events: errors before the first are answers, later ones events; silence is broken."""

import asyncio

import pytest

from deployments import sse
from deployments.errors import JobFailed
from deployments.sse import PING, begun, event_text


async def events(*parts, closed=None):
    """Dicts are sent, numbers slept, errors raised."""
    try:
        for part in parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                yield part
    finally:
        if closed is not None:
            closed.append(True)


async def text_of(*parts) -> list[str]:
    response = await begun(events(*parts))
    return [part async for part in response.body_iterator]


def test_an_event_is_named_by_its_type():
    assert event_text({"type": "a.b", "x": 1}) == 'event: a.b\ndata: {"type": "a.b", "x": 1}\n\n'
    assert event_text({"x": "two\nlines"}) == 'data: {"x": "two\\nlines"}\n\n'


def test_events_arrive_in_order_and_the_stream_ends():
    sent = [{"x": number} for number in range(3)]
    assert asyncio.run(text_of(*sent)) == [event_text(event) for event in sent]


def test_an_error_before_the_first_event_is_raised():
    with pytest.raises(JobFailed, match="no"):
        asyncio.run(text_of(JobFailed("no")))


def test_a_later_error_is_the_last_event():
    first, last = asyncio.run(text_of({"x": 1}, JobFailed("no picture")))
    assert first == event_text({"x": 1})
    assert last.startswith("event: error\n")
    assert '"code": "job_failed"' in last
    assert "no picture" in last


def test_silence_is_broken_before_a_proxy_gives_up(monkeypatch):
    monkeypatch.setattr(sse, "PING_S", 0.01)
    sent = asyncio.run(text_of(0.05, {"x": 1}))
    assert sent[0] == PING
    assert sent[-1] == event_text({"x": 1})
    assert set(sent[:-1]) == {PING}


@pytest.mark.parametrize("waiting", [True, False])
def test_a_reader_who_leaves_ends_what_he_read(waiting):
    async def run():
        closed = []
        response = await begun(
            events({"x": 1}, *([60.0] if waiting else [{"x": 2}]), closed=closed)
        )
        body = response.body_iterator
        await anext(body)
        if waiting:
            next_one = asyncio.ensure_future(anext(body))
            await asyncio.sleep(0.01)
            next_one.cancel()
            await asyncio.wait([next_one])
        await body.aclose()
        return closed

    assert asyncio.run(run()) == [True]


def test_a_caller_who_leaves_before_the_first_event_ends_it_too():
    async def run():
        closed = []
        waiting = asyncio.ensure_future(begun(events(60.0, closed=closed)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        return closed

    assert asyncio.run(run()) == [True]
