"""What the HTTP front asks of whatever draws: implemented by the driver, and by a fake in tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.fleet import Totals
from deployments.following import Feed, OnEvent, unheard
from deployments.messages import GenerateJob, GenerateResult, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a request would be drawn now, and where the start-up stands if not."""

    ready: bool
    state: str
    detail: str = ""


class ImageBackend(Protocol):
    """Draws jobs and knows its fleet."""

    async def draw(
        self, job: GenerateJob, pin: str | None = None, on_event: OnEvent = unheard
    ) -> GenerateResult:
        """The pictures, or an error of ``deployments.errors``; ``pin`` names a replica."""
        ...

    def feed(self, request_id: str) -> Feed | None:
        """The events of a job that waits or runs; None: there is no such job."""
        ...

    def cancel(self, request_id: str) -> bool:
        """Stop a job within one step; False: there is no such job."""
        ...

    def readiness(self) -> Readiness: ...

    def states(self) -> Sequence[ReplicaState]: ...

    def totals(self) -> Totals: ...

    def metrics_text(self) -> str:
        """Prometheus text."""
        ...
