"""What is said about a plan and about a request: values for JSON, lines for the log.

It reads plans and counts; what it reports as held was measured by whoever made the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from offload.plan import ComponentPlan, Lifetime, ResidencyPlan
from offload.sizes import format_bytes

_SAY_NOTHING_ALONE = ("blocks", "layers", "block", "layer")  # names of lists in any model


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentReport:
    """One component: what was decided, and what it holds."""

    name: str
    units: int
    layers: int
    resident_layers: int
    lists: Mapping[str, tuple[int, int]]
    """Block list -> (resident layers, layers)."""
    lifetime: str
    policy: str
    permanent_bytes: int
    forward_bytes: int
    streamed_bytes: int
    on_card_bytes: int
    host_bytes: int
    readiness: str
    why: str
    wish: str

    @classmethod
    def of(cls, plan: ComponentPlan, *, on_card_bytes: int, host_bytes: int) -> "ComponentReport":
        return cls(
            name=plan.name,
            units=len(plan.units),
            layers=len(plan.layers),
            resident_layers=plan.resident_layers,
            lists=_by_list(plan, (Lifetime.PERMANENT, Lifetime.FORWARD)),
            lifetime=plan.lifetime,
            policy=plan.policy.value,
            permanent_bytes=plan.bytes_with(Lifetime.PERMANENT),
            forward_bytes=plan.bytes_with(Lifetime.FORWARD),
            streamed_bytes=plan.bytes_with(Lifetime.STREAMED),
            on_card_bytes=on_card_bytes,
            host_bytes=host_bytes,
            readiness=readiness_line(plan),
            why=plan.why,
            wish=plan.wish,
        )

    @classmethod
    def planned(cls, plan: ComponentPlan) -> "ComponentReport":
        """As it will be between requests: permanent units and buffers on the card."""
        permanent = plan.bytes_with(Lifetime.PERMANENT)
        lent = sum(unit.num_bytes for unit in plan.units) - permanent
        return cls.of(plan, on_card_bytes=permanent + plan.buffer_bytes, host_bytes=lent)

    def to_dict(self) -> dict[str, Any]:
        lists = {name: list(counts) for name, counts in self.lists.items()}
        return asdict(self) | {"lists": lists}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReport:
    """The card now; ``reserved`` is what the allocator keeps from the driver."""

    name: str
    memory_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Host copies; ``shared`` where replicas of one node hold them together."""

    store_bytes: int
    pinned_bytes: int
    shared: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a residency holds at one moment."""

    card: CardReport
    host: HostReport
    components: Mapping[str, ComponentReport]

    def to_dict(self) -> dict[str, Any]:
        return {
            "card": self.card.to_dict(),
            "host": self.host.to_dict(),
            "components": {name: report.to_dict() for name, report in self.components.items()},
        }


@dataclass(slots=True, kw_only=True)
class ComponentUsage:
    """What one component did in a request; counted up until the request ends."""

    copied_bytes: int = 0  # host to card
    stall_s: float = 0.0  # the computation waited for a copy
    arming_s: float = 0.0  # the link was busy
    wasted_bytes: int = 0  # copied and not used
    on_the_spot: int = 0  # units that nobody had foreseen
    prefetched: int = 0  # units that were on their way before they were called
    passes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class RequestUsage:
    """What one request did; counted up until it ends."""

    components: dict[str, ComponentUsage] = field(default_factory=dict)
    peak_bytes: int = 0
    seconds: float = 0.0

    @property
    def copied_bytes(self) -> int:
        return sum(usage.copied_bytes for usage in self.components.values())

    @property
    def stall_s(self) -> float:
        return sum(usage.stall_s for usage in self.components.values())

    @property
    def arming_s(self) -> float:
        return sum(usage.arming_s for usage in self.components.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "copied_bytes": self.copied_bytes,
            "stall_s": self.stall_s,
            "arming_s": self.arming_s,
            "components": {name: usage.to_dict() for name, usage in self.components.items()},
        }


# --- lines -----------------------------------------------------------------------------------
def readiness_line(plan: ComponentPlan) -> str:
    """``text_encoder: resident=53/66 (permanent), policy=leading``."""
    lifetime = plan.lifetime
    if lifetime == "mixed":
        counts = {one: _count(plan, one) for one in (Lifetime.PERMANENT, Lifetime.FORWARD)}
        lifetime = ", ".join(f"{count} {one.value}" for one, count in counts.items())
    resident = f"{plan.resident_layers}/{len(plan.layers)}"
    return f"{plan.name}: resident={resident} ({lifetime}), policy={plan.policy.value}"


def placement_line(plan: ComponentPlan) -> str:
    """What was put on the card at load, permanent units only."""
    placed = _count(plan, Lifetime.PERMANENT)
    what = [f"{placed}/{len(plan.layers)} layers"] if placed else []
    what += ["the trunk"] if plan.trunk.lifetime is Lifetime.PERMANENT else []
    size = format_bytes(plan.bytes_with(Lifetime.PERMANENT))
    line = f"placed {' and '.join(what) or 'nothing'} ({size}) of {plan.name} on the card at load"
    line += "; no host copy is kept"
    if not placed:
        return line
    lists = _by_list(plan, (Lifetime.PERMANENT,))
    short = _short_names(list(lists))
    counts = ", ".join(f"{short[name]} {held}/{total}" for name, (held, total) in lists.items())
    return f"{line}; by list: {counts}"


# --- plans as data ---------------------------------------------------------------------------
def plan_to_dict(plan: ResidencyPlan) -> dict[str, Any]:
    """The plan for JSON; components as ``/fleet`` lists them, each with its ``name``."""
    return {
        "budget": asdict(plan.budget),
        "standing_bytes": plan.standing_bytes,
        "peak_bytes": plan.peak_bytes,
        "components": [ComponentReport.planned(one).to_dict() for one in plan.components],
        "warnings": list(plan.warnings),
    }


def _count(plan: ComponentPlan, lifetime: Lifetime) -> int:
    return sum(layer.lifetime is lifetime for layer in plan.layers)


def _by_list(plan: ComponentPlan, lifetimes: tuple[Lifetime, ...]) -> dict[str, tuple[int, int]]:
    """Block list -> (layers with one of the lifetimes, layers), in order of appearance."""
    counts: dict[str, tuple[int, int]] = {}
    for layer in plan.layers:
        held, total = counts.get(layer.list_name or "", (0, 0))
        counts[layer.list_name or ""] = (held + (layer.lifetime in lifetimes), total + 1)
    return counts


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted names that still tell the lists apart and say something."""
    short: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        telling = (
            end
            for end in ends
            if end not in _SAY_NOTHING_ALONE
            and not end.split(".")[0].isdigit()
            and sum(f".{other}".endswith(f".{end}") for other in names) == 1
        )
        short[name] = next(telling, name)
    return short
