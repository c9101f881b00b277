"""What was decided for one card, as a plan, and why it is not more.

It compares the choice with everything else that was weighed; it chooses nothing itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from offload import reasons
from offload.bundles import running_bytes_of
from offload.candidates import DIGIT, Candidate, Candidates
from offload.choice import Option, within_one_percent
from offload.facts import Budget
from offload.plan import ComponentPlan, ResidencyPlan


class Decision:
    """The options chosen; ``fastest`` are those that the one percent was counted from."""

    def __init__(
        self,
        weighers: Sequence[Candidates],
        chosen: Sequence[Option],
        budget: Budget,
        fastest: Sequence[Option] = (),
    ) -> None:
        self._weighers = weighers
        self._budget = budget
        picks = {pick.name: pick for option in chosen for pick in option.picks}
        self._picks = [picks[one.facts.name] for one in weighers]
        self._slowness = sum(pick.slowness for pick in self._picks)
        self._traffic = sum(pick.traffic for pick in self._picks)
        self._enough = within_one_percent(sum(option.slowness for option in fastest))

    @cached_property
    def plan(self) -> ResidencyPlan:
        pairs = zip(self._weighers, self._picks, strict=True)
        components = tuple(weigher.plan(pick.shape) for weigher, pick in pairs)
        return ResidencyPlan(components=components, budget=self._budget)

    @property
    def lost(self) -> list[ComponentPlan]:
        """Components that are not held as the user asked."""
        pairs = zip(self._picks, self.plan.components, strict=True)
        return [planned for pick, planned in pairs if pick.slowness // DIGIT]

    def explained(self) -> ResidencyPlan:
        """The plan, with a sentence for each component."""
        left = self._budget.num_bytes - self.plan.peak_bytes
        components = tuple(
            replace(planned, why=reasons.why(planned, self._next_larger(index), left))
            for index, planned in enumerate(self.plan.components)
        )
        return replace(self.plan, components=components)

    def _next_larger(self, index: int) -> int | None:
        """Bytes that the next better choice for one component falls short by; None if none is."""
        own = self._picks[index]
        better = (one for one in self._weighers[index].weighed if self._is_better(one, own))
        needs = (self._peak_with(index, one) - self._budget.num_bytes for one in better)
        return min((need for need in needs if need > 0), default=None)

    def _is_better(self, other: Candidate, own: Candidate) -> bool:
        slowness = self._slowness - own.slowness + other.slowness
        if self._slowness > within_one_percent(slowness):
            return True
        return slowness <= self._enough and other.traffic < own.traffic

    def _peak_with(self, index: int, other: Candidate) -> int:
        picks = [*self._picks[:index], other, *self._picks[index + 1 :]]
        gaps = {one.facts.name: one.gap_components for one in self._weighers}
        standing = sum(pick.standing_bytes for pick in picks)
        return standing + max(running_bytes_of(pick, picks, gaps) for pick in picks)
