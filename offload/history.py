"""What was observed: in which order a kind of pass used its units, and how often. Torch-free.

Order is observed, not assumed: a text-only request never runs the vision tower, a decoder does not
need the encoder. What the last like pass did decides what is armed and prefetched next. A pass that
ended in an exception teaches nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple


class PassKind(NamedTuple):
    """What told apart all passes of the stock pipelines that were tried."""

    component: str
    door: str  # "forward", "decode", ...
    arguments: tuple[str, ...]  # sorted names of those that are not None


@dataclass(frozen=True, slots=True)
class Observed:
    """One finished pass: units by first use, and how often each was called."""

    order: tuple[str, ...]
    uses: dict[str, int]


@dataclass(slots=True)
class Recorder:
    """Notes the calls of one pass while it runs."""

    uses: dict[str, int] = field(default_factory=dict)

    def used(self, unit: str) -> None:
        self.uses[unit] = self.uses.get(unit, 0) + 1

    def finished(self) -> Observed:
        return Observed(tuple(self.uses), dict(self.uses))


@dataclass(slots=True)
class History:
    """The last like pass of every kind, and the passes of the last like request."""

    _passes: dict[PassKind, Observed] = field(default_factory=dict)
    _last_request: dict[str, int] | None = None  # component -> its passes; None: none finished yet
    _gaps: dict[str, set[int]] = field(default_factory=dict)  # in it: see ``gap_after``

    def learn(self, kind: PassKind, observed: Observed) -> None:
        self._passes[kind] = observed

    def learn_request(self, sequence: Sequence[str]) -> None:
        """The components of a finished request, one for each pass, as these began."""
        passes: Counter[str] = Counter()
        gaps: dict[str, set[int]] = {}
        for name, following in zip_longest(sequence, sequence[1:]):
            passes[name] += 1
            if following not in (name, None):
                gaps.setdefault(name, set()).add(passes[name])
        self._last_request, self._gaps = dict(passes), gaps

    def order(self, kind: PassKind, declared: Sequence[str]) -> tuple[str, ...]:
        """Expected units of a pass; the declared order while its kind was never seen."""
        seen = self._passes.get(kind)
        return tuple(declared) if seen is None else seen.order

    def expected_uses(self, kind: PassKind, unit: str) -> int:
        seen = self._passes.get(kind)
        return 1 if seen is None else seen.uses.get(unit, 0)

    def passes_left(self, component: str, done: int) -> int | None:
        """How many more passes the last request suggests; None while unknown.

        Unknown again once there were more than then: the request is of another length, and giving
        up the component's memory after every pass would move it every time.
        """
        if self._last_request is None:
            return None
        left = self._last_request.get(component, 0) - done
        return left if left >= 0 else None

    def gap_after(self, component: str, done: int) -> bool:
        """Whether another component's pass followed so many of this one's in the last request."""
        return done in self._gaps.get(component, ())
