"""What the user asks for: which layers are resident, how long, and what to do if it does not fit.

A spec knows nothing of cards or bytes. ``auto`` leaves the choice to the planner; anything else is
a wish that the planner keeps as far as the card allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from offload.errors import SpecError

GROUPS = ("dit", "text_encoder", "image_encoder", "vae", "all")
LIFETIMES = ("auto", "forward", "permanent")
POLICIES = ("auto", "leading", "spread")
RESIDENT_WORDS = ("auto", "all", "none")
WHEN_IT_DOES_NOT_FIT = ("shrink", "refuse")

ResidentLayers = int | float | Literal["auto", "all", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec:
    """The wish for one component; SpecError on a value that cannot be meant."""

    resident_layers: ResidentLayers = "auto"
    """``auto``, ``all``, ``none``, a number of layers, or a fraction of each block list."""
    lifetime: Literal["auto", "forward", "permanent"] = "auto"
    """How long the resident set stays on the card."""
    policy: Literal["auto", "leading", "spread"] = "auto"
    """Which layers are resident: a prefix, or such that the streamed ones are evenly spaced."""
    window: int | Literal["auto"] = "auto"
    """Slots for streamed layers, two or more."""

    def __post_init__(self) -> None:
        _check_resident(self.resident_layers)
        _check_word("lifetime", self.lifetime, LIFETIMES)
        _check_word("policy", self.policy, POLICIES)
        window = self.window
        if window != "auto" and (not _is_int(window) or int(window) < 2):
            raise SpecError(f"window is {window!r}; give 'auto' or a whole number of 2 or more")

    @classmethod
    def from_value(
        cls, value: "ComponentSpec | Mapping[str, Any] | ResidentLayers"
    ) -> "ComponentSpec":
        """Read one entry of ``components``: a bare value is ``resident_layers``."""
        if isinstance(value, ComponentSpec):
            return value
        if not isinstance(value, Mapping):
            return cls(resident_layers=value)
        known = tuple(cls.__dataclass_fields__)
        unknown = [key for key in value if key not in known]
        if unknown:
            raise SpecError(
                f"unknown option {', '.join(map(repr, unknown))}; valid: {', '.join(known)}"
            )
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySpec:
    """The wish for a whole pipeline: component or group name -> ComponentSpec."""

    components: Mapping[str, ComponentSpec] = field(default_factory=dict)
    when_it_does_not_fit: Literal["shrink", "refuse"] = "shrink"
    """Shrink keeps as much of the wish as fits and warns; refuse fails before a weight is read."""

    def __post_init__(self) -> None:
        _check_word("when_it_does_not_fit", self.when_it_does_not_fit, WHEN_IT_DOES_NOT_FIT)
        read = {name: _read(name, value) for name, value in self.components.items()}
        object.__setattr__(self, "components", read)


def _read(name: str, value: Any) -> ComponentSpec:
    """One entry, the component's name in front of whatever is wrong with it."""
    try:
        return ComponentSpec.from_value(value)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_word(option: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise SpecError(f"{option} is {value!r}; valid: {', '.join(valid)}")


def _check_resident(value: object) -> None:
    hint = "give auto, all, none, a whole number of layers, or a fraction between 0 and 1"
    if isinstance(value, str):
        if value not in RESIDENT_WORDS:
            raise SpecError(f"resident_layers is {value!r}; {hint}")
    elif isinstance(value, float):
        if not 0 <= value <= 1:
            raise SpecError(f"resident_layers is {value!r}; {hint}")
    elif not _is_int(value) or int(value) < 0:  # type: ignore[call-overload]
        raise SpecError(f"resident_layers is {value!r}; {hint}")
