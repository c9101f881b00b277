"""What a component has to do in one request: calls, and the copies that they need first.

Seconds and bytes of single calls; when they happen is the schedule's.
"""

from collections.abc import Iterator
from typing import NamedTuple

from offload.facts import ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime


class Call(NamedTuple):
    """One call of a layer, and the copy that it needs first."""

    copy_s: float
    compute_s: float
    lifetime: Lifetime


class Arrival(NamedTuple):
    """A streamed call of a later round; ``before_s`` is computed first, by units already there."""

    before_s: float
    copy_s: float
    compute_s: float


class Program(NamedTuple):
    """One pass in which only streamed units move, and what is computed after the last of them."""

    arrivals: list[Arrival]
    after_s: float


Layer = tuple[UnitFacts, Lifetime]


class Workload:
    """Calls and copies of one request. A unit that is not used is never moved."""

    def __init__(self, facts: ComponentFacts, plan: ComponentPlan, copy_bytes_per_s: float) -> None:
        self._trunk, self._trunk_lifetime = facts.trunk, plan.trunk.lifetime
        self._copy_bytes_per_s = copy_bytes_per_s
        self.passes = facts.passes
        layers = zip(facts.layers, plan.layers, strict=True)
        self.layers: list[Layer] = [(u, planned.lifetime) for u, planned in layers if u.uses]
        self._rounds = max((unit.uses for unit, _ in self.layers), default=0)
        num_streamed = sum(lifetime is Lifetime.STREAMED for _, lifetime in self.layers)
        self.places = min(plan.window, num_streamed)
        # Where every streamed layer has a place of its own, the first copy lasts for the request.
        self._streams = num_streamed > plan.window
        used_s = sum(unit.compute_s * unit.uses for unit, _ in self.layers)
        self.compute_s = self.passes * (facts.trunk.compute_s + used_s)
        self.h2d_bytes = self._trunk_bytes() + sum(map(self._copied_bytes, self.layers))

    def _trunk_bytes(self) -> int:
        return self._trunk.num_bytes if self._trunk_lifetime is Lifetime.FORWARD else 0

    def _copied_bytes(self, layer: Layer) -> int:
        unit, lifetime = layer
        if lifetime is Lifetime.PERMANENT:
            return 0
        again = lifetime is Lifetime.STREAMED and self._streams
        return unit.num_bytes * (unit.uses * self.passes if again else 1)

    def trunk(self) -> tuple[float, float]:
        return self._trunk_bytes() / self._copy_bytes_per_s, self._trunk.compute_s

    def first_round(self) -> list[Call]:
        rate = self._copy_bytes_per_s
        return [Call(unit.num_bytes / rate, unit.compute_s, own) for unit, own in self.layers]

    def rounds_after_first(self) -> Iterator[Layer]:
        """A layer used n times comes in the first n rounds over the layers."""
        for done in range(1, self._rounds):
            yield from ((unit, lifetime) for unit, lifetime in self.layers if unit.uses > done)

    def calls_of_a_pass(self) -> Iterator[Layer]:
        yield self._trunk, self._trunk_lifetime
        yield from self.layers
        yield from self.rounds_after_first()

    def program(self, calls: Iterator[Layer]) -> Program:
        """Fold the calls that need no copy into the seconds before the next one that does."""
        arrivals: list[Arrival] = []
        before_s = 0.0
        for unit, lifetime in calls:
            if lifetime is Lifetime.STREAMED and self._streams:
                copy_s = unit.num_bytes / self._copy_bytes_per_s
                arrivals.append(Arrival(before_s, copy_s, unit.compute_s))
                before_s = 0.0
            else:
                before_s += unit.compute_s
        return Program(arrivals, before_s)
