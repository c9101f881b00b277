"""What crosses processes: frozen values that travel as plain dicts.

Plain, so that another Ray program reads them without this package. They know nothing of HTTP, of
torch or of a card.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
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
    attempt: int = 1  # above 1: a replica died under it, and it was sent again

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.seed + i for i in range(self.images))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Message):
    """A job has finished ``step`` of ``of`` steps, counted over all its images."""

    step: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnImage(Message):
    """One encoded picture and the seed that draws it again."""

    png: bytes
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult(Message):
    """What a finished job leaves."""

    images: tuple[DrawnImage, ...]
    replica: str
    usage: dict[str, Any] = field(default_factory=dict)  # offload's RequestUsage.to_dict()
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
    warnings: tuple[str, ...] = ()
    latency: dict[str, Any] = field(default_factory=dict)  # deployments.latency, its to_dict()
    stages: dict[str, float] = field(default_factory=dict)  # start-up stage -> seconds
    memory: dict[str, Any] = field(default_factory=dict)  # card and host of offload's snapshot
    queue: int = 0
    served: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0

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
