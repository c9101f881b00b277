"""The ways to hold one component that the planner weighs against each other.

They come from the facts and the wish alone, never from the bytes that are free: more memory then
only adds choices, so that it can never make a plan slower.
"""

from collections.abc import Sequence

from offload.choice import Candidate
from offload.facts import Budget, ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime, ResidencyPlan, UnitPlan
from offload.schedule import predict
from offload.shapes import Shape, loss, shapes
from offload.spec import ComponentSpec
from offload.wish import describe_wish

MAX_STEPS = 24  # of a component's grid of layer counts
MIN_STEPS = 4
TOTAL_STEPS = 48  # shared by the components according to their bytes
_DIGIT = 1 << 64  # base of the cost; no digit of a sum over components comes near it


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
    for shape in shapes(facts, wish, steps, kept=kept):
        lost = loss(facts, wish, shape)
        # Several shapes come to one plan (pinned layers, lists of one); the first is enough.
        key = (shape.permanent, shape.forward, shape.trunk, shape.window, lost)
        if key not in found and not (kept and any(lost)):
            found[key] = scale.candidate(shape, lost)
    return list(found.values())


def lost_of(cost: int) -> int:
    """What a cost says of the wish: zero where all of it is kept."""
    return cost // _DIGIT**3


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

    def candidate(self, shape: Shape, lost: tuple[int, int]) -> Candidate:
        plan = self._plan(shape)
        predicted = predict(self._facts, plan, self._budget.copy_bytes_per_s)
        streamed_bytes = plan.bytes_with(Lifetime.STREAMED)
        cost = 0
        for digit in (*lost, round(predicted.request_s * 1e9), predicted.h2d_bytes, streamed_bytes):
            cost = cost * _DIGIT + digit
        return Candidate(
            plan=plan,
            standing_bytes=self._arithmetic.standing_bytes_of(plan),
            running_bytes=self._arithmetic.running_bytes_of(plan),
            cost=cost,
        )

    def _plan(self, shape: Shape) -> ComponentPlan:
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


def _lifetime(index: int, shape: Shape) -> Lifetime:
    if index in shape.permanent:
        return Lifetime.PERMANENT
    return Lifetime.FORWARD if index in shape.forward else Lifetime.STREAMED


def _unit_plan(unit: UnitFacts, lifetime: Lifetime) -> UnitPlan:
    return UnitPlan(
        name=unit.name, list_name=unit.list_name, num_bytes=unit.num_bytes, lifetime=lifetime
    )
