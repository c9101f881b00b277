"""A replica that draws nothing: Tenure's driver and messages as they are, over an idle engine.

For measurements of what the driver itself costs.
"""

from typing import TYPE_CHECKING, Any, cast

from PIL import Image

from deployments.config import AppConfig
from deployments.images import encode_png
from deployments.messages import CardState, DrawnImage, GenerateJob, GenerateResult
from deployments.replica import DiffusionReplica
from deployments.stages import Stages
from deployments.steps import Cancelled, OnStep

if TYPE_CHECKING:
    from deployments.engine import Engine

PICTURE = encode_png(Image.new("RGB", (64, 64), (255, 0, 0)))
CARD = CardState(name="none", memory_bytes=0, free_bytes=0, simulated=True)


class NoOpEngine:
    """What a replica asks of an engine, with nothing behind it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.card, self.components, self.explanation, self.warnings = CARD, (), "", ()
        self.wish: dict[str, str] = {}
        self.calibration: dict[str, Any] = {}
        self.snapshot: dict[str, Any] = {"card": {}, "host": {}, "components": {}}
        self.predicted_s, self.max_pixels, self.out_of_memory = 0.0, 1 << 40, 0
        self.sticky_error, self.asleep = "", False

    def draw(self, job: GenerateJob, on_step: OnStep, cancelled: Cancelled) -> GenerateResult:
        images = tuple(DrawnImage(data=PICTURE, seed=seed) for seed in job.seeds)
        return GenerateResult(images=images, replica=self._name)


class NoOpReplica(DiffusionReplica):
    """The deployment, with that engine."""

    def __init__(self, config: AppConfig, use_gpu: bool) -> None:
        super().__init__(config, use_gpu, make=make_no_op)


def make_no_op(config: AppConfig, name: str, rank: int, use_gpu: bool, stages: Stages) -> "Engine":
    return cast("Engine", NoOpEngine(name))
