"""The ways to hold one component that the planner weighs against each other: bytes and seconds.

They come from the facts and the wish alone, never from the bytes that are free: more memory then
only adds choices.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from offload.facts import Budget, ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime, UnitPlan, largest_stretch
from offload.schedule import predict_use
from offload.shapes import Counts, Shape, Shapes
from offload.spec import ComponentSpec
from offload.wish import describe_wish
from offload.workload import FORWARD, PERMANENT, STREAMED, Use, Workload

DIGIT = 1 << 64  # base of a sum's digits; no digit of a sum over components comes near it


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to hold one component. The last two are lexicographic, and add up."""

    name: str
    shape: Shape
    standing_bytes: int
    lent_bytes: int  # on top while it runs, activations apart
    activation_bytes: int
    slowness: int  # bytes of the wish lost, windows narrowed, nanoseconds
    traffic: int  # bytes moved, bytes streamed

    @property
    def through_bytes(self) -> int:
        """What it holds while others run in its gaps."""
        return self.lent_bytes if self.shape.held_through_gaps else 0


class Candidates:
    """Weighs the shapes of one component, each once."""

    def __init__(
        self, facts: ComponentFacts, wish: ComponentSpec, budget: Budget, *, kept: bool
    ) -> None:
        self.facts = facts
        self.shapes = Shapes(facts, wish, kept=kept)
        self._wish = wish
        self._budget = budget
        self._work = Workload(facts, budget.copy_bytes_per_s)
        self._rounded = [budget.rounded(unit.num_bytes) for unit in facts.layers]
        self._weighed: dict[Counts, list[Candidate]] = {}
        self._resident = cache(self.shapes.resident)
        names = (name for gap in facts.gaps for name in gap if name != facts.name)
        self.gap_components = tuple(dict.fromkeys(names))

    @property
    def weighed(self) -> Iterator[Candidate]:
        """All that were looked at so far."""
        for some in self._weighed.values():
            yield from some

    def at(self, several: Iterable[Counts]) -> list[Candidate]:
        """Those with such counts; of the ones that keep the wish, where it is to be kept."""
        found: list[Candidate] = []
        for counts in several:
            if counts not in self._weighed:
                self._weighed[counts] = list(self._weigh(counts))
            found += self._weighed[counts]
        return found

    def _weigh(self, counts: Counts) -> Iterator[Candidate]:
        lifetimes = self._lifetimes(counts)
        for shape in self.shapes.of(counts):
            lost = self.shapes.loss(shape)
            if not (self.shapes.kept and any(lost)):
                yield self._candidate(shape, lifetimes, lost)

    def _candidate(
        self, shape: Shape, lifetimes: list[Lifetime], lost: tuple[int, int]
    ) -> Candidate:
        use, budget = self._use(shape, lifetimes), self._budget
        ahead = predict_use(self._work, use, budget.copy_bytes_per_s)
        own = zip(self._work.sizes, use.lifetimes, strict=True)
        streamed = [size for size, lifetime in own if lifetime is STREAMED]
        permanent, forward = self._held_bytes(shape, lifetimes)
        window = largest_stretch(streamed, shape.window)
        return Candidate(
            name=self.facts.name,
            shape=shape,
            standing_bytes=permanent + budget.rounded(self.facts.buffer_bytes),
            lent_bytes=budget.rounded(forward) + budget.rounded(window),
            activation_bytes=self.facts.activation_bytes,
            slowness=_digits(*lost, round(ahead.request_s * 1e9)),
            traffic=_digits(ahead.h2d_bytes, sum(streamed)),
        )

    def _use(self, shape: Shape, lifetimes: list[Lifetime]) -> Use:
        layers = zip(self.facts.layers, lifetimes, strict=True)
        used = [lifetime for unit, lifetime in layers if unit.uses]
        return Use(used, shape.trunk, shape.window, shape.held_through_gaps)

    def _held_bytes(self, shape: Shape, lifetimes: list[Lifetime]) -> tuple[int, int]:
        """Of permanent units, each an allocation of its own, and of forward units."""
        trunk = self.facts.trunk.num_bytes
        stays = shape.trunk is PERMANENT
        permanent, forward = self._budget.rounded(trunk) if stays else 0, 0 if stays else trunk
        sizes = zip(self.facts.layers, self._rounded, lifetimes, strict=True)
        for unit, rounded, lifetime in sizes:
            if lifetime is PERMANENT:
                permanent += rounded
            elif lifetime is FORWARD:
                forward += unit.num_bytes
        return permanent, forward

    def _lifetimes(self, counts: Counts) -> list[Lifetime]:
        lifetimes = [STREAMED] * len(self.facts.layers)
        for index in self.shapes.pinned:
            lifetimes[index] = PERMANENT
        for order, index in enumerate(self._resident(counts.policy, counts.resident)):
            lifetimes[index] = PERMANENT if order < counts.permanent else FORWARD
        return lifetimes

    def plan(self, shape: Shape) -> ComponentPlan:
        """The shape in the words of a plan."""
        facts = self.facts
        layers = zip(facts.layers, self._lifetimes(shape.counts), strict=True)
        return ComponentPlan(
            name=facts.name,
            trunk=_unit_plan(facts.trunk, shape.trunk),
            layers=tuple(_unit_plan(unit, lifetime) for unit, lifetime in layers),
            policy=shape.counts.policy,
            window=shape.window,
            held_through_gaps=shape.held_through_gaps,
            gap_components=self.gap_components,
            activation_bytes=facts.activation_bytes,
            buffer_bytes=facts.buffer_bytes,
            wish=describe_wish(self._wish),
        )


def _digits(*digits: int) -> int:
    number = 0
    for digit in digits:
        number = number * DIGIT + digit
    return number


def _unit_plan(unit: UnitFacts, lifetime: Lifetime) -> UnitPlan:
    return UnitPlan(
        name=unit.name,
        list_name=unit.list_name,
        num_bytes=unit.num_bytes,
        lifetime=lifetime,
        used=unit.uses > 0,
    )
