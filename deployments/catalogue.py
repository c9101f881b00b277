"""Cards by name, for planning without one: their memory, what is free of it, how fast bytes arrive.

Figures of makers' pages and of one published measurement; no card is asked. A card that is there
says for itself what is free on it.

[Note: conservative] A driver keeps a part of the memory to itself, and boards with inline ECC give
a sixteenth to it. Where nobody has measured what is left, 2.2 % is taken off: a little more than
was missing on the cards that were measured (1.9 % of an RTX 5090, 2.1 % of an RTX 4090).
"""

import re
from dataclasses import dataclass

GIB = 1 << 30
DRIVER_SHARE = 0.022
ECC_SHARE = 1 / 16
LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}  # by generation of PCI Express
REACHED_SHARE = 0.76  # 48 GB/s of pinned memory on 16 lanes of generation 5 (pull request below)
MEASURED = "https://github.com/sgl-project/sglang/pull/40599"  # free memory, copy rate
GEFORCE = "https://www.nvidia.com/en-us/geforce/graphics-cards"
DATA_CENTER = "https://www.nvidia.com/en-us/data-center"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueCard:
    """One kind of card, as sold."""

    name: str
    memory_gib: float
    pcie: int  # generation
    lanes: int = 16
    inline_ecc: bool = False  # on as delivered
    measured_free_gib: float | None = None
    source: str

    @property
    def memory_bytes(self) -> int:
        ecc = ECC_SHARE if self.inline_ecc else 0.0
        return int(self.memory_gib * (1 - ecc) * GIB)

    @property
    def free_bytes(self) -> int:
        """On a card that nobody uses, before a context exists."""
        if self.measured_free_gib is not None:
            return int(self.measured_free_gib * GIB)
        return int(self.memory_bytes * (1 - DRIVER_SHARE))

    @property
    def copy_bytes_per_s(self) -> float:
        """From page-locked host memory."""
        return LANE_BYTES_PER_S[self.pcie] * self.lanes * REACHED_SHARE


def find_in_catalogue(name: str) -> CatalogueCard | None:
    """``rtx4090``, ``RTX 4090`` and ``rtx-4090`` are the same card."""
    return next((card for card in CATALOGUE if _plain(card.name) == _plain(name)), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


CATALOGUE = (
    CatalogueCard(name="rtx3060", memory_gib=12, pcie=4, source=f"{GEFORCE}/30-series/"),
    CatalogueCard(name="rtx3090", memory_gib=24, pcie=4, source=f"{GEFORCE}/30-series/"),
    CatalogueCard(name="rtx4080", memory_gib=16, pcie=4, source=f"{GEFORCE}/40-series/"),
    CatalogueCard(name="rtx4090", memory_gib=24, pcie=4, measured_free_gib=23.5, source=MEASURED),
    CatalogueCard(name="rtx5080", memory_gib=16, pcie=5, source=f"{GEFORCE}/50-series/"),
    CatalogueCard(name="rtx5090", memory_gib=32, pcie=5, measured_free_gib=31.4, source=MEASURED),
    CatalogueCard(
        name="t4", memory_gib=16, pcie=3, inline_ecc=True, source=f"{DATA_CENTER}/tesla-t4/"
    ),
    CatalogueCard(name="l4", memory_gib=24, pcie=4, inline_ecc=True, source=f"{DATA_CENTER}/l4/"),
    CatalogueCard(
        name="a10",
        memory_gib=24,
        pcie=4,
        inline_ecc=True,
        source=f"{DATA_CENTER}/products/a10-gpu/",
    ),
    CatalogueCard(
        name="l40s", memory_gib=48, pcie=4, inline_ecc=True, source=f"{DATA_CENTER}/l40s/"
    ),
    CatalogueCard(name="a100-40gb", memory_gib=40, pcie=4, source=f"{DATA_CENTER}/a100/"),
    CatalogueCard(name="a100-80gb", memory_gib=80, pcie=4, source=f"{DATA_CENTER}/a100/"),
    CatalogueCard(name="h100", memory_gib=80, pcie=5, source=f"{DATA_CENTER}/h100/"),
    # Sold as 141 GB, of which the driver shows 140 GiB.
    CatalogueCard(name="h200", memory_gib=140, pcie=5, source=f"{DATA_CENTER}/h200/"),
)
