"""The events of a job on its way, for whoever reads them: the caller who sent it, and others.

Knows asyncio and messages; nothing of replicas, HTTP or Ray. One event loop, no locks.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Protocol

from deployments.messages import GenerateJob, GenerateResult, StepEvent

OnEvent = Callable[[StepEvent], None]


class Draws(Protocol):
    """Whatever draws a job and tells of its steps."""

    async def draw(
        self, job: GenerateJob, pin: str | None = None, on_event: OnEvent = ...
    ) -> GenerateResult: ...


def unheard(event: StepEvent) -> None:
    """For callers who wait for the result alone."""


class Feed:
    """One job's events, for its caller and any number of readers, who begin with the latest."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._previews: set[tuple[int, int]] = set()
        self._latest: StepEvent | None = None
        self._readers: set[asyncio.Queue[StepEvent | None]] = set()
        self.outcome = ""  # empty while the job is on its way

    @property
    def begun(self) -> bool:
        """Whether a step is done."""
        return self._latest is not None

    def tell(self, event: StepEvent) -> None:
        """A job that began anew makes its previews again: those are told of once."""
        if event.preview is not None:
            key = (event.preview.image, event.preview.index)
            if key in self._previews:
                event = replace(event, preview=None)
            self._previews.add(key)
        self._latest = event
        self._on_event(event)
        for reader in self._readers:
            reader.put_nowait(event)

    def end(self, outcome: str) -> None:
        """Every reader comes to an end."""
        self.outcome = outcome
        for reader in self._readers:
            reader.put_nowait(None)

    async def read(self) -> AsyncGenerator[StepEvent]:
        """Events until the job ends; one at once where a step is done already."""
        reader: asyncio.Queue[StepEvent | None] = asyncio.Queue()
        self._readers.add(reader)
        try:
            if self._latest is not None:
                yield self._latest
            if self.outcome:
                return
            while (event := await reader.get()) is not None:
                yield event
        finally:
            self._readers.discard(reader)


async def follow(
    source: Draws, job: GenerateJob, pin: str | None
) -> AsyncGenerator[StepEvent | GenerateResult]:
    """The job's events and then its result; a reader who leaves stops the job and waits for it."""
    events: asyncio.Queue[StepEvent | None] = asyncio.Queue()
    drawing = asyncio.create_task(source.draw(job, pin, events.put_nowait))
    drawing.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        yield await drawing
    finally:
        drawing.cancel()  # does nothing to a job that has ended
        await asyncio.wait([drawing])
        if not drawing.cancelled():
            drawing.exception()  # looked at, so that asyncio does not report it as forgotten
