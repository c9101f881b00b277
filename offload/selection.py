"""Which layers a wish means: a number, a share or a word, applied to each block list, and a policy.

Positions only. It does not know what a layer weighs or how long it stays.
"""

from collections.abc import Iterator, Mapping, Sequence

from offload.facts import UnitFacts
from offload.plan import Policy
from offload.spec import ResidentLayers


def resident_counts(lists: Mapping[str, int], resident_layers: ResidentLayers) -> dict[str, int]:
    """Block list -> its resident layers; counts and fractions apply to each list."""
    return {name: _count(num_layers, resident_layers) for name, num_layers in lists.items()}


def resident_indices(
    layers: Sequence[UnitFacts], resident_layers: ResidentLayers, policy: Policy
) -> frozenset[int]:
    """Positions in ``layers`` of the resident ones."""
    positions: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        positions.setdefault(layer.list_name or "", []).append(index)
    chosen: set[int] = set()
    for members in positions.values():
        num_streamed = len(members) - _count(len(members), resident_layers)
        chosen.update(members)
        chosen.difference_update(
            members[i] for i in streamed_positions(len(members), num_streamed, policy)
        )
    return frozenset(chosen)


def _count(num_layers: int, resident_layers: ResidentLayers) -> int:
    if resident_layers in ("auto", "all"):
        return num_layers
    if resident_layers == "none" or resident_layers == 0:
        return 0
    if isinstance(resident_layers, float):
        return max(1, round(resident_layers * num_layers))
    return min(int(resident_layers), num_layers)


def streamed_positions(num_layers: int, num_streamed: int, policy: Policy) -> Iterator[int]:
    """Which of so many layers in a row are streamed."""
    if policy is Policy.LEADING:
        yield from range(num_layers - num_streamed, num_layers)
        return
    # Each streamed layer ends its stretch of the list: its copy has the whole stretch to arrive.
    for i in range(num_streamed):
        yield (i + 1) * num_layers // num_streamed - 1
