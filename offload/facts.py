"""What was measured: the card, the components' units and bytes, and the budget that follows.

Facts are values: torch-free, comparable, JSON in and out. Every ``*_bytes`` of a unit counts its
storages as they lie on the card, each rounded up to 256 bytes (source: ``survey``).
"""

from dataclasses import dataclass

ALIGNMENT_BYTES = 256  # every storage starts on such a boundary, on both cards


def aligned(num_bytes: int) -> int:
    """Round up to the alignment of storages in a unit."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """One unit: a layer, or the trunk (``list_name`` None)."""

    name: str  # relative to the component, "blocks.0"; the trunk is "trunk"
    list_name: str | None
    num_bytes: int
    compute_s: float = 0.0  # seconds of one call in a pass after the first, 0 while unmeasured
    first_s: float | None = None  # of one call in a request's first pass; None: as later ones
    uses: int = 1  # calls per pass of the component; 0: a usual request does not need it
    pinned_to_card: str = ""  # why this unit can only be permanent, e.g. a wrapper subclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFacts:
    """One pipeline component as the survey found it."""

    name: str
    group: str  # dit, text_encoder, image_encoder, vae or other
    trunk: UnitFacts
    layers: tuple[UnitFacts, ...]  # in execution order as far as known
    buffer_bytes: int = 0  # on the card, always
    activation_bytes: int = 0  # peak beyond weights while it runs, 0 while unmeasured
    activation_source: str = ""  # where that comes from: "the Serve file", "measured at 128x128"
    activation_with: tuple[tuple[str, int], ...] = ()
    """What it would be with a setting that is off: ``(("tiling", 858993459),)``."""
    passes: int = 1  # calls of the component per request
    gaps: tuple[tuple[str, ...], ...] = ()
    """Between one run of it and its next in a request: the components that run meanwhile."""
    kept_in_trunk: tuple[str, ...] = ()  # parameters that are read outside their layer's call

    @property
    def weight_bytes(self) -> int:
        return self.trunk.num_bytes + sum(layer.num_bytes for layer in self.layers)

    @property
    def lists(self) -> dict[str, int]:
        """Block list -> number of its layers, in order of appearance."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            key = layer.list_name or ""
            counts[key] = counts.get(key, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """One card as detected, before anything of ours is on it."""

    name: str
    memory_bytes: int
    free_bytes: int
    reserve_bytes: int = 0  # kept free for the context, fragmentation and slack
    copy_bytes_per_s: float = 25e9  # host to card
    uuid: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes that weights and activations may use, and the link that brings them."""

    num_bytes: int
    copy_bytes_per_s: float
    granularity_bytes: int = ALIGNMENT_BYTES  # the allocator rounds each allocation up to this

    @classmethod
    def of(cls, card: CardFacts, own_bytes: int = 0) -> "Budget":
        """``own_bytes`` are not free but ours: what this process placed, or keeps in reserve."""
        usable = max(0, card.free_bytes + own_bytes - card.reserve_bytes)
        return cls(
            num_bytes=usable,
            copy_bytes_per_s=card.copy_bytes_per_s,
            granularity_bytes=ALIGNMENT_BYTES if card.simulated else 2 << 20,
        )

    def rounded(self, num_bytes: int) -> int:
        """What an allocation of ``num_bytes`` takes from the card."""
        return -(-num_bytes // self.granularity_bytes) * self.granularity_bytes
