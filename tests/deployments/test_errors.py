"""What a client is told of each error, and that errors cross processes whole."""

import pickle

import pytest

from deployments.errors import (
    JobCancelled,
    JobError,
    JobFailed,
    ModelNotFound,
    NotAuthorized,
    Overloaded,
    ReplicaFailed,
    ReplicaNotFound,
    answer_to,
    built_in,
)

NO_RETRY = {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (JobError("steps is 99", "steps"), 400, "invalid_value"),
        (ModelNotFound("no model x", "model"), 404, "model_not_found"),
        (ReplicaNotFound("no replica x"), 404, "replica_not_found"),
        (NotAuthorized("no key"), 401, "invalid_api_key"),
        (Overloaded("too many"), 429, "overloaded"),
        (JobCancelled("stopped"), 499, "request_cancelled"),
        (TimeoutError("too long"), 408, "request_timeout"),
        (JobFailed("no picture"), 500, "job_failed"),
    ],
)
def test_each_error_has_its_status_and_code(error, status, code):
    answer = answer_to(error)
    assert (answer.status, answer.code, answer.message) == (status, code, str(error))
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}


def test_the_field_at_fault_is_named():
    assert answer_to(JobError("steps is 99", "steps")).body["error"]["param"] == "steps"


@pytest.mark.parametrize("error", [JobFailed("x"), TimeoutError("x"), KeyError("x")])
def test_a_job_that_ran_is_never_repeated_by_the_client(error):
    assert answer_to(error).headers == NO_RETRY


def test_an_error_nobody_foresaw_tells_its_kind_and_no_more():
    answer = answer_to(KeyError("/secret/path"))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "KeyError" in answer.message
    assert "secret" not in answer.message


@pytest.mark.parametrize(("wait_s", "header"), [(0.0, "1"), (2.0, "2"), (2.1, "3")])
def test_overload_says_when_to_come_back_in_whole_seconds_and_never_at_once(wait_s, header):
    assert answer_to(Overloaded("x", wait_s)).headers["Retry-After"] == header


@pytest.mark.parametrize(
    "error",
    [
        JobError("bad", "size"),
        ModelNotFound("no", "model"),
        JobFailed("x"),
        ReplicaFailed("x", lost=True),
        Overloaded("x", 3.5),
    ],
)
def test_errors_cross_processes_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JobError("bad", "size"), ValueError),
        (ReplicaNotFound("none"), LookupError),
        (TimeoutError("late"), TimeoutError),
        (JobFailed("broken"), RuntimeError),
    ],
)
def test_a_program_without_this_package_gets_a_built_in_error(error, kind):
    told = built_in(error)
    assert type(told) is kind
    assert str(told) == str(error)
