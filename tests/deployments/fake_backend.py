"""A backend without Ray: draws one-pixel pictures, remembers jobs, and fails as it is told."""

import io

from PIL import Image

from deployments.backend import Readiness
from deployments.errors import ReplicaNotFound
from deployments.fleet import Totals
from deployments.latency import Latency
from deployments.messages import (
    CardState,
    DrawnImage,
    GenerateJob,
    GenerateResult,
    ReplicaState,
    State,
)

CARD = CardState(name="mini", memory_bytes=1000, free_bytes=900, simulated=True)


def png_of(width: int, height: int, seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (seed % 256, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def state_of(id_: str, **changes) -> ReplicaState:
    values = {"id": id_, "card": CARD, "state": State.READY, **changes}
    return ReplicaState(**values)


class FakeBackend:
    """An ImageBackend with one replica, ``one``."""

    def __init__(self) -> None:
        self.jobs: list[GenerateJob] = []
        self.pins: list[str | None] = []
        self.error: Exception | None = None
        self.running = {"running"}
        self.fleet = [state_of("one", latency=Latency().with_one(0.5).to_dict(), served=1)]

    async def draw(self, job: GenerateJob, pin: str | None = None) -> GenerateResult:
        self.jobs.append(job)
        self.pins.append(pin)
        if self.error is not None:
            raise self.error
        if pin not in (None, "one"):
            raise ReplicaNotFound(f"the replica {pin!r} does not exist")
        images = tuple(
            DrawnImage(png=png_of(job.width, job.height, seed), seed=seed) for seed in job.seeds
        )
        return GenerateResult(
            images=images, replica="one", usage={"peak_bytes": 7}, warnings=("slow",), seconds=0.25
        )

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
