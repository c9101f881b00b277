"""Clients of the soak: each sends one request of some kind, and says how it ended.

Knows the HTTP API alone, and for each kind the one end that it must come to.
"""

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import httpx
from PIL import Image

IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
LONG = {"prompt": "a blue circle", "num_inference_steps": 50, "n": 4}  # never done when stopped
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of one request, as its client saw it."""

    request_id: str
    kind: str
    expected: str
    outcome: str
    detail: str = ""


def plain_body(rng: random.Random) -> dict[str, Any]:
    """A small picture of some shape."""
    return {
        "prompt": rng.choice(["a red circle", "two green triangles on a white background"]),
        "size": rng.choice(["128x128", "64x64", "96x128"]),
        "num_inference_steps": rng.randint(1, 4),
        "n": rng.randint(1, 2),
        "seed": rng.randrange(1000),
    }


def _picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(buffer, format="PNG")
    return buffer.getvalue()


BAD: tuple[dict[str, Any], ...] = (
    {"json": {"prompt": ""}},
    {"json": {"prompt": "a", "colour": "red"}},
    {"json": {"prompt": "a", "n": "two"}},
    {"json": {"prompt": "a", "size": "9999x9999"}},
    {"json": {"prompt": "a", "size": "100x100"}},  # which only the pipeline knows
    {"json": {"prompt": "a" * 5000}},
    {"json": {"prompt": "a", "model": "another"}},
    {"json": {"prompt": "a"}, "headers": {"X-Tenure-Replica": "nobody"}},
    {"json": {"prompt": "a"}, "headers": {"X-Long": "x" * 40_000}},
    {"content": b"{", "headers": {"content-type": "application/json"}},
    {"content": b" " * (2 << 20), "headers": {"content-type": "application/json"}},
    {"url": EDITS, "data": {"prompt": "a"}},
    {"url": EDITS, "data": {"prompt": "a"}, "files": {"image": ("a.png", b"no picture")}},
    {
        "url": EDITS,
        "data": {"prompt": "a", "n": "99"},
        "files": {"image": ("a.png", _picture())},
    },
)


class Clients:
    """Any number of clients of one server, on one event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._bad = cycle(BAD)
        # kind -> (how often, the end it must come to, who does it)
        self._kinds: Mapping[str, tuple[int, str, Callable[..., Awaitable[tuple[str, str]]]]] = {
            "picture": (9, "served", self._draw),
            "stream": (3, "served", self._stream),
            "bad input": (4, "refused", self._send_bad),
            "DELETE": (2, "cancelled", self._delete),
            "hang-up": (2, "cancelled", self._hang_up),
        }

    async def one(self, request_id: str, rng: random.Random) -> Ended:
        """One request of a random kind."""
        kinds = list(self._kinds)
        kind = rng.choices(kinds, [self._kinds[name][0] for name in kinds])[0]
        _, expected, act = self._kinds[kind]
        outcome, detail = await act(request_id, rng)
        return Ended(
            request_id=request_id, kind=kind, expected=expected, outcome=outcome, detail=detail
        )

    async def pinned(
        self, replica_id: str, body: Mapping[str, Any]
    ) -> tuple[Ended, httpx.Response]:
        """One picture of a certain replica."""
        headers = {"X-Tenure-Replica": replica_id}
        answer = await self._http.post(IMAGES, json=body, headers=headers)
        outcome, detail = _judged(answer)
        ended = Ended(
            request_id=answer.headers["X-Request-Id"],
            kind="warm-up",
            expected="served",
            outcome=outcome,
            detail=detail,
        )
        return ended, answer

    async def _draw(self, request_id: str, rng: random.Random) -> tuple[str, str]:
        return _judged(await self._post(request_id, json=plain_body(rng)))

    async def _send_bad(self, request_id: str, rng: random.Random) -> tuple[str, str]:
        return _judged(await self._post(request_id, **next(self._bad)))

    async def _stream(self, request_id: str, rng: random.Random) -> tuple[str, str]:
        """Served where the last picture came, whatever the status said."""
        body = {**plain_body(rng), "stream": True, "partial_images": rng.randint(0, 2)}
        last: dict[str, Any] = {}
        headers = {"X-Request-Id": request_id}
        async with self._http.stream("POST", IMAGES, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return _judged(answer)
            async for event in _events(answer):
                last = event
        if str(last.get("type", "")).endswith(".completed"):
            return "served", ""
        code = last.get("error", {}).get("code")
        return "cancelled" if code == "request_cancelled" else "failed", json.dumps(last)[:300]

    async def _delete(self, request_id: str, rng: random.Random) -> tuple[str, str]:
        posting = asyncio.create_task(self._post(request_id, json=LONG))
        async for _ in self._progress(request_id, posting):
            await asyncio.sleep(rng.random() * 0.3)
            await self._http.delete(f"/v1/requests/{request_id}")
            break
        return _judged(await posting)

    async def _hang_up(self, request_id: str, rng: random.Random) -> tuple[str, str]:
        """The connection closes; what became of the request is heard on another one."""
        posting = asyncio.create_task(self._post(request_id, json=LONG))
        last: dict[str, Any] = {}
        async for event in self._progress(request_id, posting):
            last = event
            if not posting.done():
                await asyncio.sleep(rng.random() * 0.3)
                posting.cancel()
        with suppress(asyncio.CancelledError):
            return _judged(await posting)
        return str(last.get("outcome", "unknown")), json.dumps(last)

    async def _progress(
        self, request_id: str, posting: "asyncio.Task[httpx.Response]"
    ) -> AsyncIterator[dict[str, Any]]:
        """The events of a request, as soon as the server knows it."""
        while not posting.done():
            url = f"/v1/requests/{request_id}/events"
            async with self._http.stream("GET", url) as answer:
                if answer.status_code == 200:
                    async for event in _events(answer):
                        yield event
                    return
            await asyncio.sleep(POLL_S)

    async def _post(self, request_id: str, **request: Any) -> httpx.Response:
        headers = {"X-Request-Id": request_id, **request.pop("headers", {})}
        return await self._http.post(request.pop("url", IMAGES), headers=headers, **request)


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _judged(answer: httpx.Response) -> tuple[str, str]:
    """The end that a status tells of."""
    status = answer.status_code
    if status == 200:
        return "served", ""
    detail = f"{status} {answer.text[:300]}"
    if status == 499:
        return "cancelled", detail
    return "refused" if 400 <= status < 500 and status != 408 else "failed", detail
