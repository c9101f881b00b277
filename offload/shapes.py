"""Ways to divide a component's layers between the lifetimes, and what each loses of the wish.

Positions and bytes of layers only: what a shape costs in time or memory is not known here. Where
the number is open, counts run over the layers that a usual request uses, in order of execution.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from offload.facts import ComponentFacts
from offload.plan import Lifetime, Policy
from offload.selection import resident_indices, streamed_positions
from offload.spec import ComponentSpec

PERMANENT, FORWARD, _ = Lifetime


class Counts(NamedTuple):
    """How many layers are resident, and how many of those, the earliest, are permanent."""

    policy: Policy
    resident: int
    permanent: int


class Shape(NamedTuple):
    """One way to divide a component."""

    counts: Counts
    trunk: Lifetime
    window: int
    held_through_gaps: bool


class Shapes:
    """All shapes that keep the wish, or (``kept`` false) those too that keep less of it."""

    def __init__(self, facts: ComponentFacts, wish: ComponentSpec, *, kept: bool) -> None:
        self.facts, self.wish, self.kept = facts, wish, kept
        self.pinned = frozenset(i for i, unit in enumerate(facts.layers) if unit.pinned_to_card)
        open_policy = wish.policy == "auto"
        self.policies = tuple(Policy) if open_policy else (Policy(wish.policy),)
        self._asked = {policy: self._may_be_resident(policy) for policy in self.policies}

    def _may_be_resident(self, policy: Policy) -> tuple[int, ...]:
        """The layers that the user fixed; where their number is open, all that are used.

        A pinned layer is on the card whatever is asked, and is not among them.
        """
        wish, layers = self.wish.resident_layers, self.facts.layers
        asked: Iterable[int] = (i for i, unit in enumerate(layers) if unit.uses)
        if wish != "auto":
            asked = resident_indices(layers, wish, policy)
        return tuple(sorted(set(asked) - self.pinned))

    def resident(self, policy: Policy, count: int) -> tuple[int, ...]:
        """So many of the layers that may be resident, in order."""
        asked = self._asked[policy]
        streamed = set(streamed_positions(len(asked), len(asked) - count, policy))
        return tuple(layer for i, layer in enumerate(asked) if i not in streamed)

    @property
    def _fixed(self) -> bool:
        return self.kept and self.wish.resident_layers != "auto"

    def residents(self, policy: Policy) -> Sequence[int]:
        """The numbers of resident layers to choose from."""
        most = len(self._asked[policy])
        return [most] if self._fixed else range(most + 1)

    def permanents(self, resident: int) -> Sequence[int]:
        """Of so many resident layers, the numbers of permanent ones to choose from."""
        if self.wish.lifetime == "forward":
            return [0]
        return (
            [resident] if self.wish.lifetime == "permanent" and self.kept else range(resident + 1)
        )

    def of(self, counts: Counts) -> Iterator[Shape]:
        """The shapes of those counts."""
        for trunk in self._trunks(counts):
            for window in self._windows:
                yield Shape(counts, trunk, window, True)
                if self.facts.gaps:
                    yield Shape(counts, trunk, window, False)

    def _trunks(self, counts: Counts) -> Sequence[Lifetime]:
        """The trunk stays with permanent layers; with none it may, if the lifetime is open."""
        if counts.permanent or self.facts.trunk.pinned_to_card:
            return (PERMANENT,)
        lifetime = self.wish.lifetime
        if self.facts.layers:
            return (FORWARD,) if lifetime == "forward" else (FORWARD, PERMANENT)
        if lifetime == "auto" or (lifetime == "permanent" and not self.kept):
            return (FORWARD, PERMANENT)
        return (Lifetime(lifetime),)

    @cached_property
    def _windows(self) -> Sequence[int]:
        asked = 2 if self.wish.window == "auto" or not self.facts.layers else self.wish.window
        return (asked,) if self.kept or asked == 2 else (asked, 2)

    # --- what is lost of the wish --------------------------------------------------------------
    def loss(self, shape: Shape) -> tuple[int, int]:
        """Bytes that are not held as the user asked, and whether the window is smaller."""
        if self.wish == ComponentSpec():
            return 0, 0
        resident = self.resident(shape.counts.policy, shape.counts.resident)
        asked_window = 2 if self.wish.window == "auto" else self.wish.window
        streams = len(resident) + len(self.pinned) < len(self.facts.layers)
        return self._lost_bytes(shape, resident), int(streams and shape.window < asked_window)

    def _lost_bytes(self, shape: Shape, resident: Sequence[int]) -> int:
        lifetime, layers, trunk = self.wish.lifetime, self.facts.layers, self.facts.trunk
        if not layers:
            as_asked = lifetime in ("auto", shape.trunk) or trunk.pinned_to_card
            return 0 if as_asked else trunk.num_bytes
        permanent = shape.counts.permanent
        held = {"auto": resident, "forward": resident[permanent:]}.get(
            lifetime, resident[:permanent]
        )
        if self.wish.resident_layers == "auto":
            # The number is open, the lifetime is not: all that is resident has it, something is.
            kept = lifetime == "auto" or not self._asked[shape.counts.policy]
            return 0 if kept or (held and len(held) == len(resident)) else 1
        lost = set(self._asked[shape.counts.policy]).difference(held)
        return sum(layers[i].num_bytes for i in lost)
