"""What crosses processes: frozen values that travel as plain dicts.

Plain, so that another Ray program reads them without this package. They know nothing of HTTP, of
torch or of a card.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self


class Message:
    """To a plain dict and back; a field that is not known is refused by name."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every message is a dataclass

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        known = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]  # as above
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob(Message):
    """One request, complete: every default is filled in and every limit was checked."""

    request_id: str
    prompt: str
    width: int
    height: int
    steps: int
    seed: int  # image i is drawn with seed + i
    images: int = 1
    negative_prompt: str | None = None
    guidance_scale: float | None = None  # None: the pipeline's own default
    true_cfg_scale: float | None = None
    output_format: str = "png"
    output_compression: int = 100  # quality in percent; of jpeg and webp alone
    background: str = "auto"  # auto: as the pipeline draws it
    partial_images: int = 0  # previews of each image on its way
    inputs: tuple[bytes, ...] = ()  # pictures to edit, as PNG
    mask: bytes | None = None  # PNG; white is drawn anew, black is kept
    attempt: int = 1  # above 1: a replica died under it, and it was sent again

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.seed + i for i in range(self.images))

    @property
    def preview_steps(self) -> tuple[int, ...]:
        """The steps of one image after which a preview is sent: spread over it, never the last."""
        parts = self.partial_images + 1
        steps = {round(self.steps * part / parts) for part in range(1, parts)}
        return tuple(sorted(step for step in steps if 0 < step < self.steps))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = super(GenerateJob, cls).from_dict(values)
        return replace(read, inputs=tuple(read.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Message):
    """What an image looks like on its way, encoded as the job's pictures are."""

    data: bytes
    image: int  # of the job's images, from 0
    index: int  # of this image's previews, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Message):
    """A job has finished ``step`` of ``of`` steps, counted over all its images."""

    step: int
    of: int
    left_s: float = 0.0  # until the pictures are there, as this replica's pace foretells
    preview: Preview | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        preview = values.get("preview")
        return cls(**{**values, "preview": preview and Preview.from_dict(preview)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnImage(Message):
    """One picture, encoded as its job asks, and the seed that draws it again."""

    data: bytes
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult(Message):
    """What a finished job leaves."""

    images: tuple[DrawnImage, ...]
    replica: str
    usage: dict[str, Any] = field(default_factory=dict)  # offload's RequestUsage.to_dict()
    tokens: dict[str, int] = field(
        default_factory=dict
    )  # text, image and output; deployments.tokens
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        images = tuple(DrawnImage.from_dict(image) for image in values["images"])
        rest = {"images": images, "warnings": tuple(values.get("warnings", ()))}
        return cls(**{**values, **rest})


class State(StrEnum):
    """What a replica is doing."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    SLEEPING = "sleeping"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState(Message):
    """A replica's card, as it was detected before anything of ours was on it."""

    name: str
    memory_bytes: int
    free_bytes: int
    simulated: bool
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState(Message):
    """Everything the fleet page shows of one replica."""

    id: str
    card: CardState
    state: State
    detail: str = ""  # "placing text_encoder 12/66"
    components: tuple[dict[str, Any], ...] = ()  # offload's component reports, with a name
    wish: dict[str, str] = field(default_factory=dict)  # component -> the user's words
    explanation: str = ""
    predicted_s: float = 0.0  # of a usual request by the plan in force; 0: compute was not measured
    calibration: dict[str, Any] = field(default_factory=dict)  # deployments.calibration's outcome
    limits: dict[str, int] = field(default_factory=dict)  # this card's own: {"max_pixels": 65536}
    warnings: tuple[str, ...] = ()
    latency: dict[str, Any] = field(default_factory=dict)  # deployments.latency, its to_dict()
    stages: dict[str, float] = field(default_factory=dict)  # start-up stage -> seconds
    memory: dict[str, Any] = field(default_factory=dict)  # card and host of offload's snapshot
    queue: int = 0
    served: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0  # by the pipeline: nothing was computed
    retried: int = 0  # jobs that failed elsewhere first
    out_of_memory: int = 0  # times that the plan was made smaller for it
    moved: dict[str, dict[str, float]] = field(default_factory=dict)  # deployments.tally's sums

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = {
            "card": CardState.from_dict(values["card"]),
            "state": State(values["state"]),
            "components": tuple(values.get("components", ())),
            "warnings": tuple(values.get("warnings", ())),
        }
        return cls(**{**values, **read})
