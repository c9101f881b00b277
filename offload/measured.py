"""What a warm-up measured, and the facts that follow from it. Torch-free.

It knows neither how anything was measured nor what will be decided from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from offload.facts import ComponentFacts, UnitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMeasured:
    """One component in one request. Units by their names; the trunk is all outside the layers."""

    passes: int
    uses: Mapping[str, int] = field(default_factory=dict)  # unit -> its calls in the request
    order: tuple[str, ...] = ()  # layers by first use
    first_s: Mapping[str, float] = field(default_factory=dict)  # unit -> a call in the first pass
    later_s: Mapping[str, float] = field(default_factory=dict)  # unit -> a call in later ones
    gaps: tuple[tuple[str, ...], ...] = ()
    activation_bytes: int = 0  # the peak beyond weights and buffers while it ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One request: every component that ran in it."""

    components: Mapping[str, ComponentMeasured]
    copy_bytes_per_s: float = 0.0  # host to card; 0: nothing was copied
    seconds: float = 0.0  # of the request as a whole
    peak_bytes: int = 0  # weights, buffers and activations together
    source: str = ""  # "measured at 128x128"


def with_measured(
    facts: Sequence[ComponentFacts], measured: Measured
) -> tuple[ComponentFacts, ...]:
    """The same components with what was seen of them; one that did not run keeps its facts."""
    seen = measured.components
    return tuple(
        _component(one, seen[one.name], measured.source) if one.name in seen else one
        for one in facts
    )


def _component(facts: ComponentFacts, seen: ComponentMeasured, source: str) -> ComponentFacts:
    return replace(
        facts,
        trunk=_unit(facts.trunk, seen, uses=1),
        layers=tuple(_unit(layer, seen, _uses_a_pass(layer, seen)) for layer in facts.layers),
        activation_bytes=seen.activation_bytes,
        activation_source=source,
        passes=max(1, seen.passes),
        gaps=seen.gaps,
    )


def _uses_a_pass(layer: UnitFacts, seen: ComponentMeasured) -> int:
    """Rounded up: a layer that some passes skip is moved for those that do not."""
    return -(-seen.uses.get(layer.name, 0) // max(1, seen.passes))


def _unit(unit: UnitFacts, seen: ComponentMeasured, uses: int) -> UnitFacts:
    first_s = seen.first_s.get(unit.name, unit.first_s)
    later_s = seen.later_s.get(unit.name, first_s if first_s is not None else unit.compute_s)
    return replace(unit, compute_s=later_s, first_s=first_s, uses=uses)
