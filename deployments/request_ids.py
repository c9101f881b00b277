"""Gives every HTTP request an id: the client's own where it sent one.

A plain ASGI layer, so that a client that hangs up still cancels what runs beneath.
"""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
ALLOWED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Puts the id into ``request.state``, and into the answer unless a proxy in front does that."""

    def __init__(self, app: ASGIApp, *, echo: bool) -> None:
        self._app = app
        self._echo = echo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if ALLOWED.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def answer(message: Message) -> None:
            if self._echo and message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, answer)
