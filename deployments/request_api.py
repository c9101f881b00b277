"""The routes of a request that waits or runs: its progress, and its end before its time."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from deployments.backend import ImageBackend
from deployments.description import errors, streamed
from deployments.errors import RequestNotFound
from deployments.following import Feed
from deployments.sse import begun


def request_routes(backend: ImageBackend) -> APIRouter:
    """Everything below /v1/requests."""
    routes = APIRouter(prefix="/v1/requests")

    @routes.delete("/{request_id}", responses=errors(404))
    async def cancel(request_id: str) -> dict[str, Any]:
        if not backend.cancel(request_id):
            raise _not_found(request_id)
        return {"id": request_id, "cancelled": True}

    @routes.get(
        "/{request_id}/events",
        response_class=StreamingResponse,
        responses={**streamed("The request's events"), **errors(404)},
    )
    async def events(request_id: str) -> StreamingResponse:
        feed = backend.feed(request_id)
        if feed is None:
            raise _not_found(request_id)
        return await begun(_progress(request_id, feed), request_id)

    return routes


async def _progress(request_id: str, feed: Feed) -> AsyncGenerator[dict[str, Any]]:
    """One event at once, one for each step, and one for the end."""
    if not feed.begun:
        yield {"type": "request.waiting", "request_id": request_id}
    async with aclosing(feed.read()) as steps:
        async for event in steps:
            yield {
                "type": "request.progress",
                "request_id": request_id,
                "step": event.step,
                "of": event.of,
                "seconds_left": round(event.left_s, 3),
            }
    yield {"type": "request.ended", "request_id": request_id, "outcome": feed.outcome}


def _not_found(request_id: str) -> RequestNotFound:
    return RequestNotFound(f"no request {request_id!r} is waiting or running")
