"""Progress by request id: one event at once, one for each step, one for the end."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from deployments.api import create_api
from deployments.config import AppConfig
from deployments.errors import JobFailed
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.http_server import serving
from tests.deployments.test_api import ARGS, URL

STEPS = 8


@pytest.fixture
def backend():
    backend = FakeBackend()
    backend.step_s, backend.awaits_reader = 0.01, True
    return backend


@pytest.fixture
def client(backend):
    with (
        serving(create_api(AppConfig.model_validate(ARGS), backend)) as address,
        httpx.Client(base_url=f"http://{address}") as client,
    ):
        yield client


def draw(client):
    body = {"prompt": "a circle", "num_inference_steps": STEPS}
    return client.post(URL, json=body, headers={"X-Request-Id": "mine"})


def wait_for_job(backend) -> None:
    deadline = time.monotonic() + 10
    while not backend.feeds:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def events(client) -> list[dict]:
    with client.stream("GET", "/v1/requests/mine/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    found = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert {event["request_id"] for event in found} == {"mine"}
    return found


def test_each_step_is_told_with_the_seconds_left(client, backend):
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(draw, client)
        wait_for_job(backend)
        *steps, end = events(client)
        assert drawing.result().status_code == 200
    assert steps.pop(0)["type"] == "request.waiting"
    assert {event["type"] for event in steps} == {"request.progress"}
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    assert {event["of"] for event in steps} == {STEPS}
    left_s = [event["seconds_left"] for event in steps]
    assert left_s == sorted(left_s, reverse=True)
    assert (end["type"], end["outcome"]) == ("request.ended", "served")


def test_a_request_that_fails_is_told_as_such(client, backend):
    backend.error, backend.error_after = JobFailed("no"), 5
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(draw, client)
        wait_for_job(backend)
        assert events(client)[-1]["outcome"] == "failed"
        assert drawing.result().status_code == 500


def test_a_reader_who_leaves_stops_no_one_elses_job(client, backend):
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(draw, client)
        wait_for_job(backend)
        with client.stream("GET", "/v1/requests/mine/events") as answer:
            assert any("request.progress" in line for line in answer.iter_lines())
        assert drawing.result().status_code == 200


def test_a_request_that_is_not_there_has_no_events(client):
    answer = client.get("/v1/requests/unknown/events")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"
