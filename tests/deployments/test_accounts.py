"""Every request ends in exactly one of four ways, wherever it ends."""

import asyncio
from contextlib import suppress

import pytest
from fastapi import FastAPI, HTTPException
from starlette.testclient import TestClient

from deployments.accounts import AccountedRequests, Accounts
from deployments.errors import (
    JobCancelled,
    JobError,
    JobFailed,
    ModelNotFound,
    NotAuthorized,
    Overloaded,
    ReplicaNotFound,
)

NONE = {"served": 0, "failed": 0, "cancelled": 0, "refused": 0}
ENDS = [
    (None, "served"),
    (JobFailed("x"), "failed"),
    (TimeoutError("x"), "failed"),
    (KeyError("x"), "failed"),
    (JobCancelled("x"), "cancelled"),
    (asyncio.CancelledError(), "cancelled"),
    (JobError("x"), "refused"),
    (ModelNotFound("x"), "refused"),
    (Overloaded("x"), "refused"),
    (ReplicaNotFound("x"), "refused"),
    (NotAuthorized("x"), "refused"),
]


def raise_(error) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize(("error", "outcome"), ENDS)
def test_a_job_ends_in_one_way_and_is_timed(error, outcome):
    ended = []
    accounts = Accounts(lambda how, seconds: ended.append((how, seconds >= 0)))
    with suppress(BaseException), accounts.job():
        raise_(error)
    assert accounts.counts == {**NONE, outcome: 1}
    assert ended == [(outcome, True)]


def test_a_call_that_cannot_be_read_is_counted_and_one_that_can_is_left_to_its_job():
    accounts = Accounts()
    with accounts.reading():
        pass
    assert accounts.counts == NONE
    with pytest.raises(JobError), accounts.reading():
        raise JobError("no prompt")
    assert accounts.counts == {**NONE, "refused": 1}


def client_of(accounts: Accounts) -> TestClient:
    api = FastAPI()

    @api.post("/v1/images/generations")
    async def generations(status: int = 200, job: str = "") -> None:
        async def draw() -> None:
            with accounts.job():
                raise_({"": None, "failed": JobFailed("x"), "refused": JobError("x")}[job])

        if job or status == 200:
            with suppress(JobFailed, JobError):
                await asyncio.create_task(draw())  # a task of its own, as a stream has
        if status != 200:
            raise HTTPException(status)

    @api.get("/fleet")
    async def fleet() -> None:
        raise HTTPException(404)

    api.add_middleware(AccountedRequests, accounts=accounts)
    return TestClient(api)


@pytest.mark.parametrize(
    ("query", "outcome"),
    [
        ("", "served"),
        ("status=500&job=failed", "failed"),
        ("job=failed", "failed"),  # a stream has begun with 200 when its job fails
        ("status=400&job=refused", "refused"),
        ("status=400", "refused"),
        ("status=401", "refused"),
        ("status=422", "refused"),
        ("status=503", "failed"),
    ],
)
def test_an_http_request_is_counted_once_whether_it_became_a_job_or_not(query, outcome):
    accounts = Accounts()
    client_of(accounts).post(f"/v1/images/generations?{query}")
    assert accounts.counts == {**NONE, outcome: 1}


def test_requests_for_no_picture_are_not_counted():
    accounts = Accounts()
    assert client_of(accounts).get("/fleet").status_code == 404
    assert accounts.counts == NONE


def test_a_client_that_hangs_up_before_its_request_is_read_has_cancelled_it():
    accounts = Accounts()

    async def never_answers(scope, receive, send) -> None:
        raise asyncio.CancelledError

    async def run() -> None:
        app = AccountedRequests(never_answers, accounts=accounts)
        scope = {"type": "http", "path": "/v1/images/edits"}
        with pytest.raises(asyncio.CancelledError):
            await app(scope, None, None)

    asyncio.run(run())
    assert accounts.counts == {**NONE, "cancelled": 1}


def test_what_is_not_http_passes_through():
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["type"])

    asyncio.run(AccountedRequests(app, accounts=Accounts())({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
