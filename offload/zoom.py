"""From coarse counts of layers to single ones, so that large components plan in a moment.

[Note: coarse to fine] Where a component has few ways to be held, all are weighed, and the choice is
exact. Where it has many, a grid of counts is weighed first; then, around the counts of the chosen
and of the fastest plan, a grid half as wide, and so on to single layers, until nothing changes.
Every step keeps what the last one chose, so it only gets better. What it loses against weighing
everything is under the 1 % that the objective takes as equal: held in tests/offload/test_zoom.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from offload.bundles import bundles, options_of
from offload.candidates import Candidate, Candidates
from offload.choice import Choice, Option, choose, smallest
from offload.search import Effort
from offload.shapes import Counts, Shapes

# Counts of one component that are all weighed, and those of a grid, by components in its bundle:
# the options of a bundle are products.
ALL = {1: 78, 2: 42, 3: 12}
GRID = {1: 55, 2: 21, 3: 10}
FEWEST = 6  # for each in larger bundles
MOST_STEPS = 10
EFFORT = Effort(patience=4, most_sums=80)  # of a search on a grid, which the next one betters


class Zoom:
    """The search for one card; ``kept`` says which candidates there are."""

    def __init__(self, weighers: Sequence[Candidates], budget_bytes: int) -> None:
        self._weighers = {one.facts.name: one for one in weighers}
        self._budget_bytes = budget_bytes
        self._gaps = {one.facts.name: one.gap_components for one in weighers}
        self._bundles = bundles([one.facts for one in weighers])
        self._whole: dict[str, list[Counts]] = {}
        self._width: dict[str, int] = {}
        self._exact: dict[str, list[Option]] = {}  # by the first name of a bundle
        for names in self._bundles:
            for name in names:
                self._lay_out(name, len(names))
        self._coarse = self._options(
            {name: grid(self._weighers[name].shapes, w) for name, w in self._width.items()}
        )

    def _lay_out(self, name: str, bundle_size: int) -> None:
        """All counts of the component, or the width of its first grid."""
        shapes = self._weighers[name].shapes
        if grid_size(shapes, 1) <= ALL.get(bundle_size, FEWEST):
            self._whole[name] = grid(shapes, 1)
            return
        most = GRID.get(bundle_size, FEWEST)
        self._width[name] = next(w for w in count(2) if grid_size(shapes, w) <= most)

    def choice(self) -> Choice | None:
        """None where nothing fits, which the first grid shows: it has all that are leanest."""
        found = choose(self._coarse, self._budget_bytes, EFFORT if self._width else None)
        steps = 0
        while found is not None and self._width and steps < MOST_STEPS:
            steps += 1
            fine = all(width == 1 for width in self._width.values())
            self._width = {name: -(-width // 2) for name, width in self._width.items()}
            options = self._options(self._near(found))
            finer = choose(options, self._budget_bytes, EFFORT, found)
            if fine and finer == found:
                break
            found = finer
        return found

    def smallest(self) -> tuple[Option, ...]:
        return smallest(self._coarse)

    def _near(self, found: Choice) -> dict[str, list[Counts]]:
        near: dict[str, dict[Counts, None]] = {name: {} for name in self._width}
        for option in (*found.chosen, *found.fastest):
            for pick in option.picks:
                if pick.name in near:
                    around = self._around(pick, self._width[pick.name])
                    near[pick.name].update(dict.fromkeys(around))
        return {name: list(counts) for name, counts in near.items()}

    def _around(self, pick: Candidate, width: int) -> Iterator[Counts]:
        """The same counts, and those one width away, of every policy."""
        shapes = self._weighers[pick.name].shapes
        _, resident, permanent = pick.shape.counts
        for policy in shapes.policies:
            allowed = shapes.residents(policy)
            for r in _near(resident, width, allowed):
                for p in _near(permanent, width, shapes.permanents(r)):
                    yield Counts(policy, r, p)

    def _options(self, counts: Mapping[str, list[Counts]]) -> list[list[Option]]:
        return [self._options_of(names, counts) for names in self._bundles]

    def _options_of(self, names: Sequence[str], counts: Mapping[str, list[Counts]]) -> list[Option]:
        if self._width.keys().isdisjoint(names):  # they stay the same
            if names[0] not in self._exact:
                self._exact[names[0]] = self._joined(names, self._whole)
            return self._exact[names[0]]
        return self._joined(names, {**self._whole, **counts})

    def _joined(self, names: Sequence[str], counts: Mapping[str, list[Counts]]) -> list[Option]:
        return options_of([self._weighers[name].at(counts[name]) for name in names], self._gaps)


def grid(shapes: Shapes, width: int) -> list[Counts]:
    """Every so manieth number of layers, the first and the last."""
    return [
        Counts(policy, resident, permanent)
        for policy in shapes.policies
        for resident in _every(width, shapes.residents(policy))
        for permanent in _every(width, shapes.permanents(resident))
    ]


def grid_size(shapes: Shapes, width: int) -> int:
    """How many that are for one policy."""
    residents = _every(width, shapes.residents(shapes.policies[0]))
    return sum(len(_every(width, shapes.permanents(resident))) for resident in residents)


def _every(width: int, numbers: Sequence[int]) -> Sequence[int]:
    picked = numbers[::width]
    return picked if picked[-1] == numbers[-1] else [*picked, numbers[-1]]


def _near(number: int, width: int, allowed: Sequence[int]) -> list[int]:
    """The number and its neighbours a width away, as far as they go."""
    low, high = allowed[0], allowed[-1]
    return sorted({min(max(n, low), high) for n in (number - width, number, number + width)})
