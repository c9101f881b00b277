"""One job to one replica and back: Ray's errors become ours, and a dead replica means once more."""

import logging
from dataclasses import replace
from typing import Any

from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from deployments.errors import JobFailed, Overloaded
from deployments.messages import GenerateJob, GenerateResult

ATTEMPTS = 2
logger = logging.getLogger("ray.serve")


async def send(
    replicas: DeploymentHandle[Any], job: GenerateJob, pin: str | None
) -> GenerateResult:
    """The result, or an error of ours. A job is pure, so one whose replica died is sent again."""
    handle = replicas.options(session_id=pin) if pin is not None else replicas
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _follow(handle, replace(job, attempt=attempt))
        except ActorDiedError:
            if attempt == ATTEMPTS or pin is not None:
                raise JobFailed("the replica died while it drew; send the request again") from None
            logger.warning("request %s: its replica died, sending it again", job.request_id)
        except BackPressureError as error:
            raise Overloaded(f"too many requests are waiting; try again later ({error})") from None
        except RayTaskError as error:
            raise _cause(error) from None
    raise AssertionError("unreachable: the last attempt returns or raises")


async def tell(replicas: DeploymentHandle[Any], replica_id: str, what: str) -> dict[str, Any]:
    """What one replica answers to ``sleep`` or ``wake``, once its running job has ended."""
    handle = replicas.options(session_id=replica_id, stream=False)
    try:
        answer: dict[str, Any] = await getattr(handle, what).remote()
    except ActorDiedError:
        raise JobFailed(f"the replica {replica_id} died; Serve starts another") from None
    except RayTaskError as error:
        raise _cause(error) from None
    return answer


async def _follow(handle: DeploymentHandle[Any], job: GenerateJob) -> GenerateResult:
    """Read the replica's messages up to the result; stop the job if the reader is stopped."""
    stream = handle.generate.remote(job.to_dict())
    try:
        async for message in stream:
            if "images" in message:
                return GenerateResult.from_dict(message)
    except BaseException:
        stream.cancel()
        raise
    raise JobFailed("the replica ended the job without a picture")


def _cause(error: RayTaskError) -> Exception:
    """What the replica raised, without the traceback that Ray wraps around it."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else JobFailed(str(error))
