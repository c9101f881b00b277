"""Sending a job: it waits its turn, is refused, drawn, or drawn once more elsewhere; never lost."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    TaskCancelledError,
)
from starlette.testclient import TestClient

from deployments import driver as driver_module
from deployments.dispatch import send
from deployments.driver import Driver
from deployments.errors import (
    JobCancelled,
    JobError,
    JobFailed,
    Overloaded,
    ReplicaFailed,
    answer_to,
)
from deployments.fleet import Fleet
from deployments.following import unheard
from deployments.messages import GenerateJob, State
from deployments.pace import Shape
from deployments.rank import Request
from tests.deployments.test_driver import (
    FakeHandle,
    FakeStream,
    config,
    draws,
    fails,
    task_error,
)
from tests.deployments.test_fleet import replica

JOB = GenerateJob(request_id="r", prompt="p", width=8, height=8, steps=2, seed=1)
SHAPE = Shape(pixels=64, steps=2)
LOST = task_error(ReplicaFailed("the card failed", lost=True))
CANNOT_NOW = task_error(ReplicaFailed("others took its memory"))


def fleet_of(*replicas, now=lambda: 0.0) -> Fleet:
    fleet = Fleet(now)
    fleet.forecast.expect(SHAPE)
    fleet.set_running(replicas)
    return fleet


def sent(handle, fleet, job=JOB, pin=None, max_queued=9):
    sending = send(handle, fleet, job, pin=pin, max_queued=max_queued, on_event=unheard)
    return asyncio.run(sending)


class Seen:
    """What a handle answers, and which replica each attempt was meant for."""

    def __init__(self, fleet: Fleet, *planned) -> None:
        self.places: list[str | None] = []

        def noting(answer):
            def answered(job: GenerateJob) -> FakeStream:
                self.places.append(fleet.line.place_of(job.request_id))
                return answer(job)

            return answered

        self.handle = FakeHandle(*map(noting, planned))


@pytest.mark.parametrize(
    "error",
    [ActorDiedError(), ActorUnavailableError("gone", None), LOST, CANNOT_NOW],
    ids=["died", "unreachable", "card failed", "cannot wake"],
)
def test_a_job_whose_replica_failed_is_drawn_once_more_elsewhere_with_the_same_seed(error):
    fleet = fleet_of(replica("a", predicted_s=1.0), replica("b", predicted_s=9.0))
    seen = Seen(fleet, fails(error), draws)
    assert sent(seen.handle, fleet).images[0].seed == JOB.seed
    assert seen.places == ["a", "b"]
    assert seen.handle.jobs == [JOB, replace(JOB, attempt=2)]


@pytest.mark.parametrize("error", [ActorDiedError(), LOST], ids=["died", "card failed"])
def test_a_replica_that_is_lost_gets_no_job_from_then_on(error):
    fleet = fleet_of(replica("a", predicted_s=1.0), replica("b", predicted_s=9.0))
    sent(FakeHandle(fails(error), draws), fleet)
    assert {one.id: one.state for one in fleet.states()}["a"] is State.UNHEALTHY
    seen = Seen(fleet, draws)
    sent(seen.handle, fleet)
    assert seen.places == ["b"]
    fleet.set_running([replica("b")])
    fleet.set_running([replica("a"), replica("b")])  # whoever comes is judged anew
    assert all(one.state is State.READY for one in fleet.states())


def test_a_job_that_fails_twice_has_failed():
    fleet = fleet_of(replica("a", predicted_s=1.0), replica("b", predicted_s=9.0))
    handle = FakeHandle(fails(LOST), fails(ActorDiedError()), draws)
    with pytest.raises(JobFailed, match="the replica died"):
        sent(handle, fleet)
    assert len(handle.jobs) == 2


def test_where_nobody_else_can_draw_it_waits_for_the_replacement_or_fails_at_once():
    handle = FakeHandle(fails(CANNOT_NOW), draws)
    with pytest.raises(JobFailed, match="others took its memory"):
        sent(handle, fleet_of(replica("a")))
    handle = FakeHandle(fails(LOST), draws)
    assert sent(handle, fleet_of(replica("a"))).replica == "one"  # sent; the line holds it


@pytest.mark.parametrize("error", [LOST, CANNOT_NOW])
def test_a_pinned_job_is_never_drawn_elsewhere(error):
    handle = FakeHandle(fails(error), draws)
    with pytest.raises(JobFailed):
        sent(handle, fleet_of(replica("a"), replica("b")), pin="a")
    assert len(handle.jobs) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (task_error(JobFailed("no picture")), JobFailed),
        (task_error(JobError("width is 9")), JobError),
        (GetTimeoutError("slow"), JobFailed),
        (TaskCancelledError(), JobCancelled),
    ],
)
def test_what_is_not_the_replicas_fault_is_not_repeated(error, kind):
    handle = FakeHandle(fails(error), draws)
    with pytest.raises(kind):
        sent(handle, fleet_of(replica("a"), replica("b")))
    assert len(handle.jobs) == 1


def test_however_it_ends_the_line_is_left():
    fleet = fleet_of(replica("a"))
    for planned in (draws, fails(task_error(JobFailed("x"))), fails(ValueError("y"))):
        with suppress(JobFailed, ValueError):
            sent(FakeHandle(planned), fleet)
        assert not fleet.line.knows(JOB.request_id)


# --- who is not admitted --------------------------------------------------------------------------
def test_one_more_than_may_wait_is_told_when_to_come_back():
    fleet = fleet_of(replica("a", predicted_s=4.0))
    for id_ in ("drawing", "waiting", "waits too"):
        fleet.line.open(id_, Request(shape=SHAPE))
    with pytest.raises(Overloaded, match="2 requests wait already") as caught:
        sent(FakeHandle(draws), fleet, max_queued=2)
    assert caught.value.retry_after_s == pytest.approx(3 * 4.0)
    assert answer_to(caught.value).headers["Retry-After"] == "12"
    assert fleet.line.num_waiting == 2


def test_where_nobody_may_wait_a_free_replica_still_draws():
    fleet = fleet_of(replica("a", predicted_s=4.0))
    assert sent(FakeHandle(draws), fleet, max_queued=0).replica == "one"
    fleet.line.open("drawing", Request(shape=SHAPE))
    with pytest.raises(Overloaded):
        sent(FakeHandle(draws), fleet, max_queued=0)


@pytest.mark.parametrize(
    ("body", "status", "header"),
    [({"size": "8x8"}, 429, "4"), ({"size": "8x12"}, 400, None)],
)
def test_an_http_client_is_told_so_and_the_request_is_counted(monkeypatch, body, status, header):
    fleet = fleet_of(replica("a", predicted_s=4.0, limits={"max_pixels": 64}))
    fleet.line.open("drawing", Request(shape=SHAPE))
    monkeypatch.setattr(driver_module, "FLEET", fleet)
    driver = Driver(config(max_queued_requests=0), FakeHandle())
    client = TestClient(driver.__serve_build_asgi_app__())
    answer = client.post("/v1/images/generations", json={"prompt": "a circle", **body})
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, header)
    assert client.get("/fleet").json()["totals"]["requests"]["refused"] == 1
    assert asyncio.run(driver.fleet())["totals"]["requests"]["refused"] == 1


SMALL, LARGER = {"max_pixels": 33 * 33}, {"max_pixels": 64 * 64}


def test_a_size_that_no_card_holds_is_refused_naming_the_largest_that_fits():
    fleet = fleet_of(replica("a", limits=SMALL), replica("b", limits=LARGER))
    with pytest.raises(JobError, match=r"size 128x64 has 8192 pixels.*4096 now.*64x64") as caught:
        sent(FakeHandle(draws), fleet, replace(JOB, width=128, height=64))
    assert caught.value.param == "size"
    assert answer_to(caught.value).status == 400


def test_a_size_that_only_one_card_holds_goes_there():
    fleet = fleet_of(
        replica("a", limits=SMALL, predicted_s=1.0), replica("b", limits=LARGER, predicted_s=9.0)
    )
    seen = Seen(fleet, draws)
    sent(seen.handle, fleet, replace(JOB, width=64, height=64))
    assert seen.places == ["b"]


def test_a_pinned_size_is_held_against_that_card():
    fleet = fleet_of(replica("a", limits=SMALL), replica("b", limits=LARGER))
    with pytest.raises(JobError, match=r"card of replica a holds no more than 1089 .* about 32x32"):
        sent(FakeHandle(draws), fleet, replace(JOB, width=64, height=64), pin="a")


def test_while_no_replica_is_up_nothing_is_refused_for_its_size():
    fleet = fleet_of(replica("a", limits=SMALL, state="starting"))
    assert sent(FakeHandle(draws), fleet, replace(JOB, width=64, height=64)).replica == "one"


# --- what it teaches ------------------------------------------------------------------------------
def test_a_served_job_teaches_how_fast_its_replica_is():
    fleet = fleet_of(replica("one", predicted_s=5.0))
    assert fleet.candidates()[0].speed.seconds_of(SHAPE) == pytest.approx(5.0)
    sent(FakeHandle(lambda job: took(job, 2.0)), fleet)
    assert fleet.candidates()[0].speed.seconds_of(SHAPE) == pytest.approx(2.0)


def test_a_job_that_woke_its_replica_teaches_nothing():
    fleet = fleet_of(replica("one", predicted_s=5.0, state="sleeping", stages={"place": 3.0}))
    (asleep,) = fleet.candidates()
    assert asleep.wake_s == 3.0
    sent(FakeHandle(lambda job: took(job, 8.0)), fleet)
    assert fleet.candidates()[0].speed.seconds_of(SHAPE) == pytest.approx(5.0)


def took(job: GenerateJob, seconds: float) -> FakeStream:
    stream = draws(job)
    stream.messages[-1]["seconds"] = seconds
    return stream
