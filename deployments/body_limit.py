"""Refuses heads and bodies that no request needs, before they are read to the end.

Plain ASGI layers; what they mean is read elsewhere.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.errors import HTTP_CODES, INVALID, ErrorAnswer

MAX_BODY_BYTES = 64 << 20  # pictures to edit, all together
MAX_JSON_BYTES = 1 << 20
MAX_HEAD_BYTES = 32 << 10  # path, query and headers together


class HeadLimit:
    """A head over its limit is a 431 before anything looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and _head_bytes(scope) > MAX_HEAD_BYTES:
            answer = ErrorAnswer(
                status=431,
                message=f"path, query and headers are over the limit of {MAX_HEAD_BYTES} bytes",
                type=INVALID,
                code=HTTP_CODES[431],
            )
            app = JSONResponse(answer.body, answer.status)
        await app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    lines = sum(len(name) + len(value) for name, value in scope["headers"])
    return lines + len(scope["path"].encode()) + len(scope["query_string"])


class BodyLimit:
    """A body over its limit is a 413 to whoever reads it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").startswith("multipart/")
        limit = MAX_BODY_BYTES if is_form else MAX_JSON_BYTES
        announced = headers.get("content-length", "")
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            if announced.isdecimal() and int(announced) > limit:
                raise _too_large(limit)
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, limited, send)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is over the limit of {limit} bytes")
