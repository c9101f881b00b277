"""The ways to hold one component that the planner weighs against each other.

They come from the facts and the wish alone, never from the bytes that are free: more memory then
only adds choices, so that it can never make a plan slower.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offload.choice import Candidate
from offload.facts import Budget, ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime, Policy, ResidencyPlan, UnitPlan
from offload.schedule import predict
from offload.spec import ComponentSpec, ResidentLayers
from offload.wish import describe_wish, resident_indices

MAX_STEPS = 24  # of a component's grid of layer counts
MIN_STEPS = 4
TOTAL_STEPS = 48  # shared by the components according to their bytes
_DIGIT = 1 << 64  # base of the cost; no digit of a sum over components comes near it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A candidate before it is weighed. Layers by position."""

    policy: Policy
    permanent: frozenset[int]
    forward: frozenset[int]
    trunk: Lifetime
    window: int = 2


def num_steps(facts: ComponentFacts, all_facts: Sequence[ComponentFacts]) -> int:
    """Steps of the component's grid: large components are cut finer."""
    total = sum(component.weight_bytes for component in all_facts)
    share = facts.weight_bytes / total if total else 1.0
    steps = max(MIN_STEPS, min(MAX_STEPS, round(TOTAL_STEPS * share)))
    return min(steps, len(facts.layers))


def candidates(
    facts: ComponentFacts, wish: ComponentSpec, budget: Budget, steps: int, *, kept: bool
) -> list[Candidate]:
    """Those that keep the wish, or (``kept`` false) every one, the wish's losses in the cost."""
    found: dict[tuple[object, ...], Candidate] = {}
    scale = _Scale(facts, wish, budget)
    for shape in _shapes(facts, wish, steps, kept=kept):
        loss = _loss(facts, wish, shape)
        # Several shapes come to one plan (pinned layers, lists of one); the first is enough.
        key = (shape.permanent, shape.forward, shape.trunk, shape.window, loss)
        if key not in found and not (kept and any(loss)):
            found[key] = scale.candidate(shape, loss)
    return list(found.values())


def lost_of(cost: int) -> int:
    """What a cost says of the wish: zero where all of it is kept."""
    return cost // _DIGIT**3


# --- shapes ----------------------------------------------------------------------------------
def _shapes(
    facts: ComponentFacts, wish: ComponentSpec, steps: int, *, kept: bool
) -> Iterator[_Shape]:
    if not facts.layers:
        for trunk in _trunk_lifetimes(facts, wish, kept=kept):
            yield _Shape(
                policy=Policy.LEADING, permanent=frozenset(), forward=frozenset(), trunk=trunk
            )
        return
    pinned = frozenset(i for i, layer in enumerate(facts.layers) if layer.pinned_to_card)
    for policy in _policies(facts, wish):
        for resident, parts in _resident_sets(facts, wish, policy, steps, kept=kept):
            for permanent in _permanent_parts(resident, parts, wish, kept=kept):
                for trunk in _trunk_beside(permanent, facts, wish):
                    for window in _windows(wish, kept=kept):
                        yield _Shape(
                            policy=policy,
                            permanent=permanent | pinned,
                            forward=resident - permanent - pinned,
                            trunk=trunk,
                            window=window,
                        )


def _policies(facts: ComponentFacts, wish: ComponentSpec) -> tuple[Policy, ...]:
    if wish.policy != "auto":
        return (Policy(wish.policy),)
    # While no compute time is known, time is transfer time, and which layers move is all the same.
    measured = any(layer.compute_s for layer in facts.layers)
    return (Policy.LEADING, Policy.SPREAD) if measured else (Policy.LEADING,)


def _resident_sets(
    facts: ComponentFacts, wish: ComponentSpec, policy: Policy, steps: int, *, kept: bool
) -> Iterator[tuple[frozenset[int], int]]:
    """Sets of resident layers, each with the number of parts to divide it into."""
    asked = _wished_set(facts, wish, policy)
    if asked is not None:
        yield asked, steps
        if kept:
            return
    for step in range(steps + 1):
        share: ResidentLayers = "none" if step == 0 else step / steps
        layers = resident_indices(facts.layers, share, policy)
        if asked is None or layers < asked:
            yield layers, step


def _wished_set(
    facts: ComponentFacts, wish: ComponentSpec, policy: Policy
) -> frozenset[int] | None:
    """The layers that the user fixed; None where their number is open."""
    if wish.resident_layers == "auto":
        return None
    return resident_indices(facts.layers, wish.resident_layers, policy)


def _permanent_parts(
    resident: frozenset[int], parts: int, wish: ComponentSpec, *, kept: bool
) -> Iterator[frozenset[int]]:
    """Prefixes of the resident set: the earliest layers are the permanent ones."""
    ordered = sorted(resident)
    if wish.lifetime == "permanent" and kept:
        yield resident
    elif wish.lifetime == "forward" or not parts:
        yield frozenset()
    else:
        for part in range(parts + 1):
            yield frozenset(ordered[: round(len(ordered) * part / parts)])


def _trunk_beside(
    permanent: frozenset[int], facts: ComponentFacts, wish: ComponentSpec
) -> Iterator[Lifetime]:
    """The trunk stays with permanent layers; with none it may, if the lifetime is open."""
    if permanent or facts.trunk.pinned_to_card:
        yield Lifetime.PERMANENT
        return
    yield Lifetime.FORWARD
    if wish.lifetime != "forward":
        yield Lifetime.PERMANENT


def _trunk_lifetimes(
    facts: ComponentFacts, wish: ComponentSpec, *, kept: bool
) -> tuple[Lifetime, ...]:
    if facts.trunk.pinned_to_card:
        return (Lifetime.PERMANENT,)
    if wish.lifetime == "auto" or (wish.lifetime == "permanent" and not kept):
        return (Lifetime.FORWARD, Lifetime.PERMANENT)
    return (Lifetime(wish.lifetime),)


def _windows(wish: ComponentSpec, *, kept: bool) -> tuple[int, ...]:
    asked = 2 if wish.window == "auto" else wish.window
    return (asked,) if kept or asked == 2 else (asked, 2)


# --- what is lost of the wish ----------------------------------------------------------------
def _loss(facts: ComponentFacts, wish: ComponentSpec, shape: _Shape) -> tuple[int, int]:
    """Bytes that are not held as the user asked, and whether the window is smaller."""
    narrower = wish.window != "auto" and shape.window < wish.window and _streams(facts, shape)
    return _lost_bytes(facts, wish, shape), int(narrower)


def _streams(facts: ComponentFacts, shape: _Shape) -> bool:
    return len(shape.permanent) + len(shape.forward) < len(facts.layers)


def _lost_bytes(facts: ComponentFacts, wish: ComponentSpec, shape: _Shape) -> int:
    if not facts.layers:
        as_asked = wish.lifetime in ("auto", shape.trunk) or facts.trunk.pinned_to_card
        return 0 if as_asked else facts.trunk.num_bytes
    asked = _wished_set(facts, wish, shape.policy)
    held = {
        "auto": shape.permanent | shape.forward,
        "forward": shape.forward,
        "permanent": shape.permanent,
    }[wish.lifetime]
    free = [i for i, layer in enumerate(facts.layers) if not layer.pinned_to_card]
    if asked is None:
        # The number is open, the lifetime is not: whatever is resident has it, and something is.
        others = (shape.permanent | shape.forward) - held
        kept = wish.lifetime == "auto" or not free or (bool(held) and not others.intersection(free))
        return 0 if kept else 1
    return sum(facts.layers[i].num_bytes for i in asked.intersection(free) - held)


# --- weighing --------------------------------------------------------------------------------
class _Scale:
    """Weighs shapes of one component."""

    def __init__(self, facts: ComponentFacts, wish: ComponentSpec, budget: Budget) -> None:
        self._facts = facts
        self._wish = describe_wish(wish)
        self._budget = budget
        self._arithmetic = ResidencyPlan(components=(), budget=budget)
        self._units = [
            {lifetime: _unit_plan(unit, lifetime) for lifetime in Lifetime}
            for unit in (facts.trunk, *facts.layers)
        ]

    def candidate(self, shape: _Shape, loss: tuple[int, int]) -> Candidate:
        plan = self._plan(shape)
        predicted = predict(self._facts, plan, self._budget.copy_bytes_per_s)
        streamed_bytes = plan.bytes_with(Lifetime.STREAMED)
        cost = 0
        for digit in (*loss, round(predicted.request_s * 1e9), predicted.h2d_bytes, streamed_bytes):
            cost = cost * _DIGIT + digit
        return Candidate(
            plan=plan,
            standing_bytes=self._arithmetic.standing_bytes_of(plan),
            running_bytes=self._arithmetic.running_bytes_of(plan),
            cost=cost,
        )

    def _plan(self, shape: _Shape) -> ComponentPlan:
        trunk, *layers = self._units
        return ComponentPlan(
            name=self._facts.name,
            trunk=trunk[shape.trunk],
            layers=tuple(layer[_lifetime(i, shape)] for i, layer in enumerate(layers)),
            policy=shape.policy,
            window=shape.window,
            activation_bytes=self._facts.activation_bytes,
            buffer_bytes=self._facts.buffer_bytes,
            wish=self._wish,
        )


def _lifetime(index: int, shape: _Shape) -> Lifetime:
    if index in shape.permanent:
        return Lifetime.PERMANENT
    return Lifetime.FORWARD if index in shape.forward else Lifetime.STREAMED


def _unit_plan(unit: UnitFacts, lifetime: Lifetime) -> UnitPlan:
    return UnitPlan(
        name=unit.name, list_name=unit.list_name, num_bytes=unit.num_bytes, lifetime=lifetime
    )
