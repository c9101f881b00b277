"""Which host copies are page-locked, where not all of them may be. Torch-free; it locks nothing.

Locked memory cannot be taken back by the system, so it is given out: first to what is copied for
every call, then to what is copied once a run. Permanent units have no host copy and no part in it.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from offload.facts import ComponentFacts
from offload.plan import ComponentPlan, Lifetime, ResidencyPlan
from offload.schedule import predict
from offload.sizes import format_bytes

PAGE_BYTES = mmap.PAGESIZE
LENT = (Lifetime.STREAMED, Lifetime.FORWARD)  # the order in which they are served


def locked_bytes(num_bytes: int) -> int:
    """What locking so many bytes takes: whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PinBudget:
    """How many bytes this process may lock, and why not more."""

    num_bytes: int
    why: str


class PinShare(Protocol):
    """Gives this process its part of the memory that may be locked."""

    def ask(self, wanted_bytes: int) -> PinBudget:
        """Called whenever host copies were made or dropped; they are in memory by then."""

    def tell(self, pinned_bytes: int) -> None:
        """What was really locked in the end."""


class WholeShare:
    """Of a process that shares with nobody."""

    def ask(self, wanted_bytes: int) -> PinBudget:
        return PinBudget(num_bytes=wanted_bytes, why="all that there is to lock")

    def tell(self, pinned_bytes: int) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class LentUnit:
    """A unit that has a host copy under a plan."""

    component: str
    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What one component's host copies came to, in whole pages."""

    component: str
    host_bytes: int
    pinned_bytes: int

    @property
    def unpinned_bytes(self) -> int:
        return self.host_bytes - self.pinned_bytes


def rank_for_pins(plan: ResidencyPlan, facts: Sequence[ComponentFacts]) -> tuple[LentUnit, ...]:
    """Every lent unit, the one to lock first first.

    Streamed units before forward ones, of each the component that moves most bytes a request
    first. What a usual request does not move comes last.
    """
    known = {one.name: one for one in facts}
    rate = plan.budget.copy_bytes_per_s
    moved = {c.name: predict(known[c.name], c, rate).h2d_bytes for c in plan.components}
    components = sorted(plan.components, key=lambda c: -moved[c.name])
    unused = {(one.name, layer.name) for one in facts for layer in one.layers if not layer.uses}
    ranked = [unit for lifetime in LENT for c in components for unit in _lent(c, lifetime)]
    return tuple(sorted(ranked, key=lambda unit: (unit.component, unit.name) in unused))


def first_fit(sizes: Sequence[int], budget_bytes: int) -> list[bool]:
    """Which of these to lock: in order, each that still fits whole."""
    fits, left_bytes = [], budget_bytes
    for size in sizes:
        fits.append(locked_bytes(size) <= left_bytes)
        left_bytes -= locked_bytes(size) if fits[-1] else 0
    return fits


def pin_line(pinned: Iterable[Pinned], budget: PinBudget) -> str:
    """How many bytes are locked and how many not, of which components, and why; "" for none."""
    parts = [part for part in pinned if part.host_bytes]
    if not parts:
        return ""
    host_bytes = sum(part.host_bytes for part in parts)
    without = [part for part in parts if part.unpinned_bytes]
    if not without:
        return f"host copies: {format_bytes(host_bytes)}, all page-locked"
    unpinned_bytes = sum(part.unpinned_bytes for part in without)
    names = ", ".join(f"{part.component} {format_bytes(part.unpinned_bytes)}" for part in without)
    locked = sum(part.pinned_bytes for part in parts)
    return (
        f"host copies: {format_bytes(locked)} page-locked, {format_bytes(unpinned_bytes)} not "
        f"({names}), which are copied more slowly: {_why(host_bytes, budget)}"
    )


def _why(host_bytes: int, budget: PinBudget) -> str:
    if budget.num_bytes >= host_bytes:
        return "the system locked no more (ulimit -l, or the container's memory limit)"
    return f"the pin budget is {format_bytes(budget.num_bytes)}, {budget.why}"


def _lent(component: ComponentPlan, lifetime: Lifetime) -> Iterator[LentUnit]:
    for unit in component.units:
        if unit.lifetime is lifetime and unit.num_bytes:
            yield LentUnit(component=component.name, name=unit.name, num_bytes=unit.num_bytes)
