"""One job to one replica and back: Ray's errors become ours, and a dead replica means once more."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ray.exceptions import (
    ActorDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
)
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from deployments.errors import JobCancelled, JobError, JobFailed, Overloaded, ReplicaFailed
from deployments.fleet import Fleet
from deployments.following import OnEvent
from deployments.messages import GenerateJob, GenerateResult, StepEvent
from deployments.pace import Shape
from deployments.rank import ABLE, Request

ATTEMPTS = 2
SIZE_STEP = 16  # pixels: most models take multiples of it
logger = logging.getLogger("ray.serve")


async def send(
    replicas: DeploymentHandle[Any],
    fleet: Fleet,
    job: GenerateJob,
    *,
    pin: str | None,
    max_queued: int,
    on_event: OnEvent,
) -> GenerateResult:
    """The result, or an error of ours.

    A job is pure: one whose replica died or failed is drawn once more, elsewhere.
    """
    request = Request(shape=shape_of(job), pin=pin)
    _check_held(fleet, job, pin)
    for attempt in range(1, ATTEMPTS + 1):
        with _in_line(fleet, job.request_id, request, max_queued if attempt == 1 else None):
            try:
                result = await _follow(replicas, replace(job, attempt=attempt), on_event)
                fleet.job_ended(result.replica, request.shape, result.seconds)
                return result
            except BackPressureError as error:
                raise Overloaded(f"too many requests are waiting ({error})") from None
            except RayError as error:
                failure, where = _cause(error), fleet.line.place_of(job.request_id)
        if attempt == ATTEMPTS or not _may_go_elsewhere(fleet, failure, where, pin):
            raise failure
        logger.warning("request %s: %s; it is drawn elsewhere", job.request_id, failure)
        request = replace(request, avoid=frozenset() if where is None else frozenset({where}))
    raise AssertionError("unreachable: the last attempt returns or raises")


def shape_of(job: GenerateJob) -> Shape:
    return Shape(pixels=job.width * job.height, steps=job.steps, images=job.images)


def _check_held(fleet: Fleet, job: GenerateJob, pin: str | None) -> None:
    """JobError where no replica that is up draws pictures of this size."""
    able = [one for one in fleet.candidates() if one.state in ABLE and pin in (None, one.id)]
    if not able or any(one.holds(shape_of(job)) for one in able):
        return
    largest = max(one.max_pixels or 0 for one in able)
    whose = "no card of this fleet holds" if pin is None else f"the card of replica {pin} holds no"
    raise JobError(
        f"size {job.width}x{job.height} has {job.width * job.height} pixels; {whose} more than "
        f"{largest} now, which is about {_square(largest)}",
        "size",
    )


def _square(pixels: int) -> str:
    """The largest square in steps that every model takes: ``128x128``."""
    side = max(SIZE_STEP, math.isqrt(pixels) // SIZE_STEP * SIZE_STEP)
    return f"{side}x{side}"


@contextmanager
def _in_line(fleet: Fleet, job_id: str, request: Request, max_queued: int | None) -> Iterator[None]:
    """Waits and draws within; a job that was admitted once goes to the front."""
    line = fleet.line
    line.open(job_id, request, first=max_queued is None)
    try:
        waits = line.place_of(job_id) is None
        if max_queued is not None and waits and line.num_waiting > max_queued:
            wait_s = line.wait_s(job_id)
            raise Overloaded(
                f"{max_queued} requests wait already; try again in about {wait_s:.0f} s", wait_s
            )
        yield
    finally:
        line.close(job_id)


def _may_go_elsewhere(fleet: Fleet, failure: Exception, where: str | None, pin: str | None) -> bool:
    """Whether another replica may draw it; a replica that is lost gets no job from now on."""
    if not isinstance(failure, ReplicaFailed):
        return False
    if failure.lost and where is not None:
        fleet.lose(where, str(failure))
    others = [one for one in fleet.candidates() if one.state in ABLE and one.id != where]
    return pin is None and (failure.lost or bool(others))


async def tell(replicas: DeploymentHandle[Any], replica_id: str, what: str) -> dict[str, Any]:
    """What one replica answers to ``sleep`` or ``wake``, once its running job has ended."""
    handle = replicas.options(session_id=replica_id, stream=False)
    try:
        answer: dict[str, Any] = await getattr(handle, what).remote()
    except RayError as error:
        raise _cause(error) from None
    return answer


async def _follow(
    handle: DeploymentHandle[Any], job: GenerateJob, on_event: OnEvent
) -> GenerateResult:
    """Read the replica's messages up to the result; stop the job if the reader is stopped."""
    stream = handle.generate.remote(job.to_dict())
    try:
        result = None
        async for message in stream:  # to its end: only then is the replica free for the next job
            if "images" in message:
                result = GenerateResult.from_dict(message)
            else:
                on_event(StepEvent.from_dict(message))
    except BaseException:
        stream.cancel()
        raise
    if result is None:
        raise JobFailed("the replica ended the job without a picture")
    return result


def _cause(error: RayError) -> Exception:
    """What the replica raised, without the traceback that Ray wraps around it, or that it died."""
    if isinstance(error, TaskCancelledError):
        return JobCancelled("the request was cancelled")
    if isinstance(error, RayActorError):
        died = isinstance(error, ActorDiedError)
        what = "died" if died else "cannot be reached"
        return ReplicaFailed(f"the replica {what}; send the request again", died)
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, Exception):
        return cause
    logger.error(
        "a job ended in an error of Ray's: %s", error
    )  # with its traceback: not to clients
    return JobFailed(f"the job was lost ({type(error).__name__}); send the request again")
