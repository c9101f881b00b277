"""What a warm-up measured, and the facts that follow from it. Torch-free.

It knows neither how anything was measured nor what will be decided from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from offload.facts import ComponentFacts, UnitFacts

ONCE = ("text_encoder", "image_encoder", "vae")  # groups that do not run in denoising steps


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


def with_live_bytes(timed: Measured, counted: Measured) -> Measured:
    """``timed``, with the activations and the peak of a like request in which they were counted.

    Counting them costs time on the host, which a wall clock shows as the components' own.
    """
    components = {
        name: replace(one, activation_bytes=counted.components[name].activation_bytes)
        if name in counted.components
        else one
        for name, one in timed.components.items()
    }
    return replace(timed, components=components, peak_bytes=counted.peak_bytes)


def for_steps(
    measured: Measured, facts: Sequence[ComponentFacts], seen: int, usual: int
) -> Measured:
    """The same request with ``usual`` denoising steps instead of ``seen``.

    A denoiser, or whatever runs beside it (a ControlNet), runs equally often in every step;
    encoders and decoders do not run in steps.
    """
    stepping = {one.name for one in facts if one.group not in ONCE}
    components = {
        name: _for_steps(one, seen, usual)
        if name in stepping and one.passes and one.passes % seen == 0
        else one
        for name, one in measured.components.items()
    }
    return replace(measured, components=components)


def _for_steps(one: ComponentMeasured, seen: int, usual: int) -> ComponentMeasured:
    num_runs = len(one.gaps) + 1
    gaps = one.gaps
    if gaps and num_runs % seen == 0:  # a gap comes again with every step
        a_step = num_runs // seen
        gaps = tuple(gaps[i % a_step] for i in range(a_step * usual - 1))
    return replace(
        one,
        passes=one.passes // seen * usual,
        uses={name: -(-count * usual // seen) for name, count in one.uses.items()},
        gaps=gaps,
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
