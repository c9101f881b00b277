"""How every request ended: each id in exactly one of four ways, however far it came.

It knows outcomes and ASGI; nothing of replicas, whose own counts are of jobs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.errors import OUTCOMES, outcome_of

COUNTED = "/v1/images/"  # requests below it are for pictures
HUNG_UP = 499
Ended = Callable[[str, float], None]  # (outcome, seconds)
# The outcomes counted under one HTTP request: tasks that it starts share the list.
_told: ContextVar[list[str] | None] = ContextVar("_told", default=None)


class Accounts:
    """Requests that ended, by outcome; one event loop, no locks."""

    def __init__(self, ended: Ended = lambda outcome, seconds: None) -> None:
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self._ended = ended

    @contextmanager
    def job(self) -> Iterator[None]:
        """A request that became a job ends with this block."""
        began = time.monotonic()
        outcome = "served"
        try:
            yield
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.add(outcome)
            self._ended(outcome, time.monotonic() - began)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A request that fails within never becomes a job."""
        try:
            yield
        except BaseException as error:
            self.add(outcome_of(error))
            raise

    def add(self, outcome: str) -> None:
        self.counts[outcome] += 1
        if (told := _told.get()) is not None:
            told.append(outcome)


class AccountedRequests:
    """A plain ASGI layer: requests for pictures that never become a job are counted, too."""

    def __init__(self, app: ASGIApp, *, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(COUNTED):
            await self._app(scope, receive, send)
            return
        status = HUNG_UP  # until an answer begins

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        told: list[str] = []
        token = _told.set(told)
        try:
            await self._app(scope, receive, answer)
        finally:
            if not told:
                self._accounts.add(_outcome_of_status(status))
            _told.reset(token)


def _outcome_of_status(status: int) -> str:
    if status == HUNG_UP:
        return "cancelled"
    return "failed" if status >= 500 else "refused"
