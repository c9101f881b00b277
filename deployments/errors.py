"""Every error that the application raises on purpose, and what an HTTP client is told of it.

Classes that cross processes pass every argument to ``super().__init__``, so that they unpickle.

TenureError
├── ConfigError          the Serve file cannot be read or meant so (also a ValueError)
├── ModelError           the checkpoint is missing, incomplete or of a kind that is not served
├── JobError             the job cannot be run as asked; nothing was computed (also a ValueError)
│   └── ModelNotFound    the request names a model that is not served here
├── JobCancelled         the job was told to stop, and stopped
├── JobFailed            the job was tried and did not end in pictures
│   └── ReplicaFailed    the fault is the replica's: another one may draw the job
├── Overloaded           more requests wait than the fleet admits
├── ReplicaNotFound      the request is pinned to a replica that does not exist
├── RequestNotFound      no request of that id waits or runs
└── NotAuthorized        the request carries none of the API keys
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RETRY_AFTER_S = 5


class TenureError(Exception):
    """Any error of the application."""


class ConfigError(TenureError, ValueError):
    """The Serve file cannot be read, or says what cannot be meant."""


class ModelError(TenureError):
    """The checkpoint is missing, incomplete, or of a kind that is not served."""


class JobError(TenureError, ValueError):
    """The job cannot be run as asked; nothing was computed. ``param`` is the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.param = param

    def __str__(self) -> str:
        return str(self.args[0])


class ModelNotFound(JobError):
    """The request names a model that is not served here."""


class JobCancelled(TenureError):
    """The job was told to stop, and stopped."""


class JobFailed(TenureError, RuntimeError):
    """The job was tried and did not end in pictures."""


class ReplicaFailed(JobFailed):
    """The fault is the replica's, and another may draw the job; ``lost``: this one never will."""

    def __init__(self, message: str, lost: bool = False) -> None:
        super().__init__(message, lost)
        self.lost = lost

    def __str__(self) -> str:
        return str(self.args[0])


class Overloaded(TenureError):
    """More requests wait than the fleet admits; ``retry_after_s``: when a place is expected."""

    def __init__(self, message: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class ReplicaNotFound(TenureError, LookupError):
    """The request is pinned to a replica that does not exist."""


class RequestNotFound(TenureError, LookupError):
    """No request of that id waits or runs."""


class NotAuthorized(TenureError):
    """The request carries none of the API keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """An error as OpenAI's clients read it."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        keys = ("message", "type", "param", "code")
        return {"error": {key: getattr(self, key) for key in keys}}


OUTCOMES = ("served", "failed", "cancelled", "refused")
_REFUSALS = (JobError, NotAuthorized, Overloaded, ReplicaNotFound)  # nothing was computed

# The openai client repeats 408, 409, 429 and 5xx by itself. A job that ran once would run again.
NO_RETRY = {"x-should-retry": "false"}
INVALID, SERVER = "invalid_request_error", "server_error"
# Status -> code of what is refused before any route of ours sees it; others are not_found.
HTTP_CODES = {
    400: "invalid_value",
    405: "method_not_allowed",
    413: "request_too_large",
    431: "head_too_large",
}
INTERNAL = "internal_error"  # the code of an error nobody foresaw

# First match wins: kind, status, type, code, headers.
_ANSWERS: tuple[tuple[type[Exception], int, str, str, Mapping[str, str]], ...] = (
    (ModelNotFound, 404, INVALID, "model_not_found", {}),
    (ReplicaNotFound, 404, INVALID, "replica_not_found", {}),
    (RequestNotFound, 404, INVALID, "request_not_found", {}),
    (NotAuthorized, 401, INVALID, "invalid_api_key", {}),
    (JobError, 400, INVALID, "invalid_value", {}),
    (JobCancelled, 499, INVALID, "request_cancelled", NO_RETRY),
    (Overloaded, 429, "rate_limit_error", "overloaded", {}),
    (TimeoutError, 408, SERVER, "request_timeout", NO_RETRY),
    (JobFailed, 500, SERVER, "job_failed", NO_RETRY),
)


def answer_to(error: Exception, request_id: str = "") -> ErrorAnswer:
    """What the client is told; of an error nobody foresaw its kind, and where the log has more."""
    for kind, status, type_, code, headers in _ANSWERS:
        if isinstance(error, kind):
            return ErrorAnswer(
                status=status,
                message=str(error),
                type=type_,
                code=code,
                param=getattr(error, "param", None),
                headers={**headers, **_retry_after(error)},
            )
    which = f"request {request_id}" if request_id else "this request"
    message = f"the server failed on {which} ({type(error).__name__}); see its log"
    return ErrorAnswer(status=500, message=message, type=SERVER, code=INTERNAL, headers=NO_RETRY)


def log_failure(
    logger: logging.Logger, request_id: str, error: Exception, answer: ErrorAnswer
) -> None:
    """What the client is told of a fault of ours; the traceback goes here and nowhere else."""
    if answer.status >= 500:
        unforeseen = error if answer.code == INTERNAL else None
        logger.error("request %s: %s", request_id, answer.message, exc_info=unforeseen)


def _retry_after(error: Exception) -> Mapping[str, str]:
    """Whole seconds, as HTTP wants them, and never at once."""
    if not isinstance(error, Overloaded):
        return {}
    return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}


def outcome_of(error: BaseException | None) -> str:
    """One of ``OUTCOMES``: how a request ended; one that took too long has failed."""
    if error is None:
        return "served"
    if isinstance(error, JobCancelled | asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return "refused" if isinstance(error, _REFUSALS) else "failed"


def built_in(error: Exception) -> Exception:
    """The same error as a type that a program without this package can read."""
    for kind in (ValueError, LookupError, TimeoutError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(str(error) or type(error).__name__)
