"""What one Serve file may say under ``args``: strict models, and the residency wish they hold.

It knows nothing of Ray, torch or any card. A value that cannot be meant is refused here, with the
same words as from Python; a component name is checked later, where the components are known.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deployments.paths import resolve
from offload import ComponentSpec, ResidencySpec, parse_bytes, parse_rate

Dtype = Literal["float32", "bfloat16", "float16"]


class StrictModel(BaseModel):
    """A frozen value that refuses every field it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(StrictModel):
    """Which checkpoint is served, under which name."""

    name: str
    """The name that requests give as ``model``."""
    path: str = ""
    """A folder (relative to the project or absolute) or a hub name; empty: the same as ``name``."""
    dtype: Dtype = "bfloat16"
    component_dtypes: dict[str, Dtype] = Field(default_factory=dict)
    """Exceptions by component, such as ``vae: float32``."""
    revision: str | None = None
    local_files_only: bool = True
    sizes: tuple[str, ...] = ()
    """Sizes it was trained for; another one is drawn with a warning. Empty: any."""

    @field_validator("sizes")
    @classmethod
    def _check_sizes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for size in value:
            parse_size(size)
        return value

    def size_warnings(self, width: int, height: int) -> tuple[str, ...]:
        """What to tell a client whose picture has a size that the model never saw."""
        if not self.sizes or f"{width}x{height}" in self.sizes:
            return ()
        trained = ", ".join(self.sizes)
        return (
            f"size is {width}x{height}; {self.name} was trained for {trained}, and the picture may "
            "repeat or cut off what was asked",
        )

    @property
    def source(self) -> str:
        """The checkpoint's absolute folder, or its hub name where no such folder exists."""
        return resolve(self.path or self.name)

    def dtype_of(self, component: str) -> Dtype:
        return self.component_dtypes.get(component, self.dtype)


_SETTINGS = {"tiling", "activation"}  # of the component itself; the rest is the residency wish


class ComponentConfig(StrictModel):
    """One entry of ``components``: a residency wish, and settings of the component itself."""

    resident_layers: int | float | str = "auto"
    lifetime: str = "auto"
    policy: str = "auto"
    window: int | str = "auto"
    tiling: bool = False
    """Decode the picture in tiles: a VAE's activations shrink, its picture changes slightly."""
    activation: int | str = 0
    """Memory beyond weights that it needs while it runs at the largest size; 0: not known."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        """A bare value is ``resident_layers``; the wish itself is judged by the library."""
        if not isinstance(value, Mapping):
            value = {"resident_layers": value}
        ComponentSpec.from_value({key: v for key, v in value.items() if key not in _SETTINGS})
        parse_bytes(value.get("activation", 0))
        return value

    @property
    def activation_bytes(self) -> int:
        return parse_bytes(self.activation)

    def to_spec(self) -> ComponentSpec:
        return ComponentSpec.from_value(self.model_dump(exclude=_SETTINGS))


class SimulatedCardConfig(StrictModel):
    """A card that exists only as arithmetic over host memory; sizes read like ``24MiB``."""

    name: str
    memory: int | str
    rate: int | float | str = "10GB/s"
    used: int | str = 0
    """Bytes that another process holds on it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_rate(self.rate)
        if self.used_bytes >= self.memory_bytes:
            raise ValueError(f"card {self.name}: used {self.used} leaves nothing of {self.memory}")
        return self

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory)

    @property
    def bytes_per_s(self) -> float:
        return parse_rate(self.rate)

    @property
    def used_bytes(self) -> int:
        return parse_bytes(self.used)


class CardsConfig(StrictModel):
    """Which cards the replicas run on."""

    gpu: Literal["auto", "require", "never"] = "auto"
    """``auto`` takes GPUs where the cluster has any and simulated cards elsewhere."""
    replicas: Literal["auto"] | int = "auto"
    """``auto``: one per GPU of the cluster, or one per simulated card."""
    simulated: tuple[SimulatedCardConfig, ...] = ()

    @property
    def num_seats(self) -> int:
        """Replicas among which the simulated cards are dealt out."""
        return self.replicas if isinstance(self.replicas, int) else max(1, len(self.simulated))

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"replicas is {value}; give auto or a whole number of 1 or more")
        return value


class PlacementConfig(StrictModel):
    """On which nodes replicas may run, by Ray node labels."""

    labels: dict[str, str] = Field(default_factory=dict)
    fallback: tuple[dict[str, str], ...] = ()
    """Label sets that are tried in turn where no node has ``labels``."""


class LimitsConfig(StrictModel):
    """What one request may ask for; the message of a refusal names the limit."""

    max_pixels: int = Field(default=1024 * 1024, gt=0)
    max_images: int = Field(default=4, gt=0)
    max_steps: int = Field(default=50, gt=0)
    max_prompt_chars: int = Field(default=2000, gt=0)


class DefaultsConfig(StrictModel):
    """What a request that does not say gets."""

    size: str = "1024x1024"
    steps: int = Field(default=20, gt=0)

    @field_validator("size")
    @classmethod
    def _check_size(cls, value: str) -> str:
        parse_size(value)
        return value

    @property
    def width_height(self) -> tuple[int, int]:
        return parse_size(self.size)


class ServerConfig(StrictModel):
    """The HTTP front and the time that a request may take."""

    api_keys_file: str | None = None
    """One key a line; requests then need ``Authorization: Bearer KEY``."""
    api_keys_env: str | None = None
    """A variable of the server's environment that holds keys in the same way."""
    request_timeout_s: float = Field(default=300, gt=0)
    max_queued_requests: int = Field(default=128, ge=0)
    """Requests that may wait for a card; one more is a 429 that says when to come back."""
    sleep_after_s: float | None = Field(default=None, gt=0)
    """Idle seconds after which a replica gives its card back until the next job; null: never."""

    @property
    def needs_keys(self) -> bool:
        return self.api_keys_file is not None or self.api_keys_env is not None


class AppConfig(StrictModel):
    """The ``args`` of the application."""

    model: ModelConfig
    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    when_it_does_not_fit: str = "shrink"
    cards: CardsConfig = CardsConfig()
    placement: PlacementConfig = PlacementConfig()
    limits: LimitsConfig = LimitsConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    host_store: Literal["private"] = "private"
    pin_budget: int | str = "auto"
    """Host memory that one replica may page-lock; ``auto``: its part of what the node has free."""
    calibrate: bool = True
    """Measure at every start and plan again from that; false: plan once, from what is known."""
    calibration_dir: str | None = None
    """A folder for what was measured, so that the next start need not measure again."""
    server: ServerConfig = ServerConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.to_spec()
        width, height = self.defaults.width_height
        if width * height > self.limits.max_pixels:
            raise ValueError(
                f"defaults.size {self.defaults.size} has {width * height} pixels, "
                f"above limits.max_pixels {self.limits.max_pixels}"
            )
        if self.defaults.steps > self.limits.max_steps:
            raise ValueError(
                f"defaults.steps {self.defaults.steps} is above "
                f"limits.max_steps {self.limits.max_steps}"
            )
        return self

    @field_validator("pin_budget")
    @classmethod
    def _check_pin_budget(cls, value: int | str) -> int | str:
        if value != "auto":
            parse_bytes(value)
        return value

    @property
    def pin_budget_bytes(self) -> int | None:
        """None: as ``auto`` finds."""
        return None if self.pin_budget == "auto" else parse_bytes(self.pin_budget)

    @property
    def activation_bytes(self) -> dict[str, int]:
        """Component -> bytes beyond weights, where the file says."""
        known = {name: entry.activation_bytes for name, entry in self.components.items()}
        return {name: size for name, size in known.items() if size}

    @property
    def passes(self) -> dict[str, int]:
        """Group -> calls in a usual request: the denoiser runs once a step."""
        return {"dit": self.defaults.steps}

    @property
    def may_shrink(self) -> bool:
        """Whether a card that is too small may do less than the file says."""
        return self.when_it_does_not_fit == "shrink"

    def to_spec(self) -> ResidencySpec:
        """The residency wish of the whole pipeline."""
        return ResidencySpec(
            components={name: entry.to_spec() for name, entry in self.components.items()},
            when_it_does_not_fit=self.when_it_does_not_fit,  # type: ignore[arg-type]  # it judges
        )


def parse_size(text: str) -> tuple[int, int]:
    """``"128x96"`` -> (128, 96): width and height in pixels."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ValueError(f"size is {text!r}; give WIDTHxHEIGHT in pixels, such as 128x128")
    return int(width), int(height)
