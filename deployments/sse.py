"""Server-sent events as text, kept alive while nothing happens.

Knows the format and asyncio; nothing of what the events say.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse

from deployments.errors import answer_to, log_failure

logger = logging.getLogger(__name__)
PING_S = 10.0  # proxies give up on a silent connection, many after 15 s
PING = ": ping\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold events back


def event_text(event: dict[str, Any]) -> str:
    """One event, named by its ``type`` where it has one."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


async def begun(events: AsyncGenerator[dict[str, Any]], request_id: str = "") -> StreamingResponse:
    """An answer that streams ``events``; what fails before the first one is still an error answer.

    Its headers leave with the first event, or with the first ping.
    """
    texts = _texts(events)
    first = await anext(texts, "")

    async def whole() -> AsyncIterator[str]:
        async with aclosing(texts):
            yield first
            try:
                async for text in texts:
                    yield text
            except Exception as error:  # the status has left: the client reads it as an event
                answer = answer_to(error, request_id)
                log_failure(logger, request_id, error, answer)
                yield event_text({"type": "error", **answer.body})

    return StreamingResponse(whole(), media_type="text/event-stream", headers=HEADERS)


async def _texts(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[str]:
    """Each event, and a ping whenever none came for a while; a reader who leaves ends them."""
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            await asyncio.wait([coming], timeout=PING_S)
            if not coming.done():
                yield PING
                continue
            event = coming.result()
            if event is None:
                return
            yield event_text(event)
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()  # looked at, so that asyncio does not report it as forgotten
        await events.aclose()
