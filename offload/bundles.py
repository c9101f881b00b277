"""Components that hold something through each other's runs, made one: their options together.

Bundles do not touch each other, so that the choice among them is a sum. It knows of a candidate
only what it holds and what it costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from offload.candidates import Candidate
from offload.choice import Option
from offload.facts import ComponentFacts


def bundles(facts: Sequence[ComponentFacts]) -> list[list[str]]:
    """Names of components that belong together: one runs in a gap of another. In order."""
    names = {one.name for one in facts}
    groups: list[set[str]] = []
    for one in facts:
        joined = {one.name} | {name for gap in one.gaps for name in gap} & names
        apart = [group for group in groups if not group & joined]
        groups = [*apart, joined.union(*(group for group in groups if group & joined))]
    return [[one.name for one in facts if one.name in group] for group in groups]


def options_of(
    candidates: Sequence[Sequence[Candidate]], gap_components: Mapping[str, Sequence[str]]
) -> list[Option]:
    """Every combination of the useful candidates of one bundle's components."""
    useful = [list(_undominated(few)) for few in candidates]
    return [_option(picks, gap_components) for picks in product(*useful)]


def _undominated(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Those that no other one beats in everything that counts, the first of equals."""
    kept: list[tuple[int, int, int, int]] = []
    for one in sorted(candidates, key=_counts):  # so that none before it has more standing bytes
        _, lent, through, slowness, traffic = _counts(one)
        for a, b, c, d in kept:
            if a <= lent and b <= through and c <= slowness and d <= traffic:
                break
        else:
            kept.append((lent, through, slowness, traffic))
            yield one


def _counts(one: Candidate) -> tuple[int, int, int, int, int]:
    return (one.standing_bytes, one.lent_bytes, one.through_bytes, one.slowness, one.traffic)


def _option(picks: Sequence[Candidate], gap_components: Mapping[str, Sequence[str]]) -> Option:
    return Option(
        standing_bytes=sum(one.standing_bytes for one in picks),
        running_bytes=max(running_bytes_of(one, picks, gap_components) for one in picks),
        slowness=sum(one.slowness for one in picks),
        traffic=sum(one.traffic for one in picks),
        picks=tuple(picks),
    )


def running_bytes_of(
    one: Candidate, picks: Sequence[Candidate], gap_components: Mapping[str, Sequence[str]]
) -> int:
    """Held while it runs: its own, and what the others hold through its runs."""
    others = sum(
        other.through_bytes
        for other in picks
        if other is not one and one.name in gap_components[other.name]
    )
    return one.lent_bytes + one.activation_bytes + others
