"""What stays on the card, and for how long.

A plan is arithmetic: no torch, no weight moves, equal inputs give equal plans. Permanent sets add
up; forward sets and windows take turns, so only the largest counts, with whatever is held through
a gap of its component by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offload.facts import Budget


class Lifetime(StrEnum):
    """How long a unit's copy stays on the card."""

    PERMANENT = "permanent"  # from load to shutdown; no host copy; sets add up
    FORWARD = "forward"  # while its component runs for a request; host copy kept; sets take turns
    STREAMED = "streamed"  # around the unit's own call, in the window; host copy kept


class Policy(StrEnum):
    """Which layers are resident."""

    LEADING = "leading"  # a prefix
    SPREAD = "spread"  # such that the streamed layers are evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """One unit and its lifetime."""

    name: str
    list_name: str | None  # None: the trunk
    num_bytes: int
    lifetime: Lifetime
    used: bool = True  # by a usual request; a streamed layer that is not has no place in the window


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """Residency of one component; layers in execution order."""

    name: str
    trunk: UnitPlan
    layers: tuple[UnitPlan, ...]
    policy: Policy = Policy.LEADING
    window: int = 2  # streamed layers that hold a place at once: the running one and those ahead
    held_through_gaps: bool = True  # what is lent stays between two runs of it in one request
    gap_components: tuple[str, ...] = ()  # those that run between two runs of it; () also: unknown
    activation_bytes: int = 0
    buffer_bytes: int = 0
    wish: str = "auto"  # the user's words
    why: str = ""  # one sentence: what was chosen, and why

    @property
    def units(self) -> tuple[UnitPlan, ...]:
        return (self.trunk, *self.layers)

    def bytes_with(self, lifetime: Lifetime) -> int:
        return sum(unit.num_bytes for unit in self.units if unit.lifetime is lifetime)

    @property
    def streamed(self) -> tuple[UnitPlan, ...]:
        return tuple(layer for layer in self.layers if layer.lifetime is Lifetime.STREAMED)

    @property
    def window_bytes(self) -> int:
        """The largest ``window`` consecutive streamed layers together."""
        return largest_stretch([unit.num_bytes for unit in self.streamed if unit.used], self.window)

    @property
    def lends(self) -> bool:
        """Whether anything comes and goes."""
        return any(unit.lifetime is not Lifetime.PERMANENT for unit in self.units)

    @property
    def resident_layers(self) -> int:
        return len(self.layers) - len(self.streamed)

    @property
    def lifetime(self) -> str:
        """permanent, forward, mixed, or streamed where no layer is resident."""
        resident = {layer.lifetime for layer in self.layers} - {Lifetime.STREAMED}
        if not self.layers:
            resident = {self.trunk.lifetime}
        if not resident:
            return Lifetime.STREAMED.value
        return "mixed" if len(resident) > 1 else resident.pop().value


def largest_stretch(sizes: Sequence[int], num_places: int) -> int:
    """The largest sum of so many neighbours, or of all where there are fewer."""
    width = min(num_places, len(sizes))
    return max((sum(sizes[i : i + width]) for i in range(len(sizes) - width + 1)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPlan:
    """One card's plan. Components run one at a time; ``warnings`` were said to the user."""

    components: tuple[ComponentPlan, ...]
    budget: Budget
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ComponentPlan:
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(name)

    def standing_bytes_of(self, component: ComponentPlan) -> int:
        """Held between requests: each permanent unit is an allocation of its own."""
        permanent = [u.num_bytes for u in component.units if u.lifetime is Lifetime.PERMANENT]
        return sum(map(self.budget.rounded, permanent)) + self.budget.rounded(
            component.buffer_bytes
        )

    def lent_bytes_of(self, component: ComponentPlan) -> int:
        """Its forward units and its window: what comes when it runs, and goes."""
        arena = self.budget.rounded(component.bytes_with(Lifetime.FORWARD))
        return arena + self.budget.rounded(component.window_bytes)

    def through_bytes_of(self, component: ComponentPlan) -> int:
        """What others hold through the runs of this one."""
        return sum(
            self.lent_bytes_of(other)
            for other in self.components
            if other.held_through_gaps
            and other.name != component.name
            and component.name in other.gap_components
        )

    def running_bytes_of(self, component: ComponentPlan) -> int:
        """Held on top of every standing set while this component runs."""
        lent = self.lent_bytes_of(component) + component.activation_bytes
        return lent + self.through_bytes_of(component)

    @property
    def standing_bytes(self) -> int:
        return sum(map(self.standing_bytes_of, self.components))

    @property
    def peak_bytes(self) -> int:
        return self.standing_bytes + max(map(self.running_bytes_of, self.components), default=0)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.budget.num_bytes
