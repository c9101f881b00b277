"""What a component has to do in one request: calls, and the copies that they need first.

Seconds and bytes of single calls; when they happen is the schedule's. Layers are those that a
usual request uses, in order of execution; the others are never moved.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from offload.facts import ComponentFacts, UnitFacts
from offload.plan import Lifetime

PERMANENT, FORWARD, STREAMED = Lifetime


class Arrival(NamedTuple):
    """A streamed call of a later round; ``before_s`` is computed first, by units already there."""

    before_s: float
    copy_s: float
    compute_s: float


class Program(NamedTuple):
    """Calls in which only streamed units move, and what is computed after the last of them."""

    arrivals: list[Arrival]
    after_s: float


class Use(NamedTuple):
    """How one component is held: its used layers' lifetimes, and what they share."""

    lifetimes: Sequence[Lifetime]  # of the used layers only
    trunk: Lifetime
    window: int = 2
    held_through_gaps: bool = True


class Workload:
    """Calls and copies of one request, whatever is held."""

    def __init__(self, facts: ComponentFacts, copy_bytes_per_s: float) -> None:
        used = [layer for layer in facts.layers if layer.uses]
        self.sizes = [layer.num_bytes for layer in used]
        self.copy_s = [size / copy_bytes_per_s for size in self.sizes]
        self.first_s = [_first_s(layer) for layer in used]
        self.later_s = [layer.compute_s for layer in used]
        self.uses = [layer.uses for layer in used]
        self.trunk_bytes = facts.trunk.num_bytes
        self.trunk_copy_s = facts.trunk.num_bytes / copy_bytes_per_s
        self.trunk_first_s, self.trunk_later_s = _first_s(facts.trunk), facts.trunk.compute_s
        self.passes = facts.passes
        self.num_runs = max(1, min(1 + len(facts.gaps), facts.passes))
        first_s = self.trunk_first_s + _dot(self.uses, self.first_s)
        later_s = self.trunk_later_s + _dot(self.uses, self.later_s)
        self.compute_s = first_s + (self.passes - 1) * later_s
        rounds = range(1, max(self.uses, default=0))
        self._again = [i for done in rounds for i, uses in enumerate(self.uses) if uses > done]

    def runs_of(self, use: Use) -> list[int]:
        """Passes of each run; what is lent arrives once a run."""
        count = 1 if use.held_through_gaps else self.num_runs
        return [self.passes // count + (i < self.passes % count) for i in range(count)]

    def streams(self, use: Use) -> bool:
        """Where every streamed layer has a place of its own, the first copy lasts for the run."""
        return use.lifetimes.count(STREAMED) > use.window

    def moved_bytes(self, use: Use) -> int:
        """Host to card in one request."""
        num_runs = 1 if use.held_through_gaps else self.num_runs
        calls = self.passes if self.streams(use) else 0
        total = num_runs * self.trunk_bytes if use.trunk is FORWARD else 0
        for size, uses, own in zip(self.sizes, self.uses, use.lifetimes, strict=True):
            if own is FORWARD or (own is STREAMED and not calls):
                total += num_runs * size
            elif own is STREAMED:
                total += calls * uses * size
        return total

    def rest_of_pass(self, use: Use, compute_s: Sequence[float]) -> Program:
        """A layer used n times comes in the first n rounds over the layers: all but the first."""
        return self._program(use, 0.0, self._again, compute_s)

    def later_pass(self, use: Use) -> Program:
        order = [*range(len(self.sizes)), *self._again]
        return self._program(use, self.trunk_later_s, order, self.later_s)

    def _program(
        self, use: Use, before_s: float, order: Sequence[int], compute_s: Sequence[float]
    ) -> Program:
        """Fold the calls that need no copy into the seconds before the next one that does."""
        if not self.streams(use):
            return Program([], before_s + sum(compute_s[i] for i in order))
        arrivals: list[Arrival] = []
        lifetimes, copy_s = use.lifetimes, self.copy_s
        for i in order:
            if lifetimes[i] is STREAMED:
                arrivals.append(Arrival(before_s, copy_s[i], compute_s[i]))
                before_s = 0.0
            else:
                before_s += compute_s[i]
        return Program(arrivals, before_s)


def _first_s(unit: UnitFacts) -> float:
    return unit.compute_s if unit.first_s is None else unit.first_s


def _dot(uses: Iterable[int], seconds: Iterable[float]) -> float:
    return sum(count * one for count, one in zip(uses, seconds, strict=True))
