"""A backend without Ray: draws one-pixel pictures, remembers jobs, and fails as it is told."""

import asyncio
import io

from PIL import Image

from deployments.backend import Readiness
from deployments.errors import ReplicaNotFound
from deployments.fleet import Totals
from deployments.following import Feed, OnEvent, unheard
from deployments.latency import Latency
from deployments.messages import (
    CardState,
    DrawnImage,
    GenerateJob,
    GenerateResult,
    Preview,
    ReplicaState,
    State,
    StepEvent,
)

CARD = CardState(name="mini", memory_bytes=1000, free_bytes=900, simulated=True)


def png_of(width: int, height: int, seed: int, blue: int = 0, format: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (seed % 256, 0, blue)).save(buffer, format=format)
    return buffer.getvalue()


def preview_of(job: GenerateJob, step: int) -> Preview | None:
    """Another blue for each step."""
    image, own = (step - 1) // job.steps, (step - 1) % job.steps + 1
    if own not in job.preview_steps:
        return None
    data = png_of(job.width, job.height, job.seeds[image], step, job.output_format)
    return Preview(data=data, image=image, index=job.preview_steps.index(own))


def state_of(id_: str, **changes) -> ReplicaState:
    values = {"id": id_, "card": CARD, "state": State.READY, **changes}
    return ReplicaState(**values)


class FakeBackend:
    """An ImageBackend with one replica, ``one``, that draws at once or as it is let."""

    def __init__(self) -> None:
        self.jobs: list[GenerateJob] = []
        self.pins: list[str | None] = []
        self.error: Exception | None = None
        self.error_after = 0  # steps that are done before the error
        self.feeds: dict[str, Feed] = {}
        self.running = {"running"}
        self.stopped: list[str] = []  # jobs whose caller left
        self.step_s = 0.0
        self.awaits_reader = False  # before the first step
        self.fleet = [state_of("one", latency=Latency().with_one(0.5).to_dict(), served=1)]

    async def draw(
        self, job: GenerateJob, pin: str | None = None, on_event: OnEvent = unheard
    ) -> GenerateResult:
        self.jobs.append(job)
        self.pins.append(pin)
        if pin not in (None, "one"):
            raise ReplicaNotFound(f"the replica {pin!r} does not exist")
        feed = self.feeds[job.request_id] = Feed(on_event)
        outcome = "failed"
        try:
            await self._step(job, feed)
            outcome = "served"
        except asyncio.CancelledError:
            outcome = "cancelled"
            self.stopped.append(job.request_id)
            raise
        finally:
            del self.feeds[job.request_id]
            feed.end(outcome)
        images = tuple(
            DrawnImage(data=png_of(job.width, job.height, seed, 0, job.output_format), seed=seed)
            for seed in job.seeds
        )
        return GenerateResult(
            images=images,
            replica="one",
            usage={"peak_bytes": 7},
            tokens={"text": 3, "image": 10 * len(job.inputs), "output": 64 * job.images},
            warnings=("slow",),
            seconds=0.25,
        )

    async def _step(self, job: GenerateJob, feed: Feed) -> None:
        of = job.steps * job.images
        while self.awaits_reader and not feed._readers:
            await asyncio.sleep(0.002)
        for step in range(1, of + 1):
            if self.error is not None and step > self.error_after:
                raise self.error
            await asyncio.sleep(self.step_s)
            left_s = (of - step) * self.step_s
            feed.tell(StepEvent(step=step, of=of, left_s=left_s, preview=preview_of(job, step)))

    def feed(self, request_id: str) -> Feed | None:
        return self.feeds.get(request_id)

    def cancel(self, request_id: str) -> bool:
        return request_id in self.running

    def readiness(self) -> Readiness:
        ready = any(state.state is State.READY for state in self.fleet)
        first = self.fleet[0]
        return Readiness(ready=ready, state=first.state.value, detail=first.detail)

    def states(self) -> list[ReplicaState]:
        return self.fleet

    def totals(self) -> Totals:
        total = Totals()
        for state in self.fleet:
            total = total.plus(state)
        return total

    def metrics_text(self) -> str:
        return "tenure_replicas 1\n"
