"""Whose seconds they were: one request as a line of moments, each with the owner of what follows.

Pure: it keeps what a card gives for a moment, and is told the seconds between them afterwards.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Share(NamedTuple):
    """Time of one unit in one pass of its component; the trunk is all outside the layers."""

    component: str
    pass_number: int  # from 1, within the request
    unit: str


@dataclass(slots=True)
class Timeline:
    """Shares begin and end within one another; the innermost owns the time. None: nobody does."""

    moments: list[object] = field(default_factory=list)  # as the card gives them
    owners: list[Share | None] = field(default_factory=list)  # of the time after each
    calls: Counter[Share] = field(default_factory=Counter)
    runs: list[str] = field(default_factory=list)  # components in turn
    _stack: list[Share | None] = field(default_factory=list)

    def push(self, owner: Share | None, moment: object) -> None:
        self._stack.append(owner)
        self._note(moment)

    def turn(self, owner: Share | None, moment: object) -> None:
        """The time of the innermost share becomes another's."""
        self._stack[-1] = owner
        self._note(moment)

    def pop(self, moment: object) -> None:
        self._stack.pop()
        self._note(moment)

    def count(self, share: Share) -> None:
        self.calls[share] += 1

    def ran(self, component: str) -> None:
        """A pass of it; like passes in a row are one run."""
        if self.runs[-1:] != [component]:
            self.runs.append(component)

    @property
    def around(self) -> Share | None:
        """The pass or call in which the present one happens."""
        return next((share for share in reversed(self._stack) if share is not None), None)

    def _note(self, moment: object) -> None:
        self.moments.append(moment)
        self.owners.append(self._stack[-1] if self._stack else None)

    # --- afterwards --------------------------------------------------------------------------
    def seconds(self, laps: Sequence[float]) -> Mapping[Share, float]:
        """By share; ``laps`` are the seconds from each moment to the next."""
        total: dict[Share, float] = {}
        for owner, lap_s in zip(self.owners, laps, strict=False):  # none after the last one
            if owner is not None:
                total[owner] = total.get(owner, 0.0) + lap_s
        return total

    def gaps_of(self, component: str) -> Iterator[tuple[str, ...]]:
        """Between one run of it and its next: whoever ran meanwhile, each once, in order."""
        places = [i for i, name in enumerate(self.runs) if name == component]
        for first, then in pairwise(places):
            yield tuple(dict.fromkeys(self.runs[first + 1 : then]))

    def calls_of(self, component: str) -> Mapping[str, int]:
        """Unit -> its calls in the request, by first call."""
        calls: dict[str, int] = {}
        for share, count in self.calls.items():
            if share.component == component:
                calls[share.unit] = calls.get(share.unit, 0) + count
        return calls

    def seconds_of_a_call(
        self, component: str, seconds: Mapping[Share, float], *, first: bool
    ) -> Mapping[str, float]:
        """Unit -> mean seconds of its calls in the request's first pass, or in all later ones."""
        total_s: dict[str, float] = {}
        calls: dict[str, int] = {}
        for share, count in self.calls.items():
            if share.component == component and (share.pass_number == 1) is first:
                total_s[share.unit] = total_s.get(share.unit, 0.0) + seconds.get(share, 0.0)
                calls[share.unit] = calls.get(share.unit, 0) + count
        return {unit: total_s[unit] / count for unit, count in calls.items()}
