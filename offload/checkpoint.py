"""From loaded weights to the card, unit by unit, through two small staging buffers.

What ``from_pretrained`` leaves are views of the safetensors mapping (or anonymous memory where the
dtype was converted). A permanent unit's bytes go straight from there to the card: no host copy.
After a sleep they come from the file itself, or from where they were saved.
"""

from collections.abc import Iterable
from contextlib import ExitStack

import torch

from offload.cards.base import COMPUTE, COPY, Card, Event
from offload.parts import Part, Reader, loaded_parts
from offload.plan import Lifetime
from offload.unit import Unit

STAGING_BYTES = 64 << 20  # a power of two, which a pinned pool does not round up


class Placement:
    """Places permanent units at load. ``charge_to`` labels what the copies cost."""

    def __init__(self, card: Card, largest_unit_bytes: int, charge_to: str) -> None:
        size = min(STAGING_BYTES, max(1, largest_unit_bytes))
        self._card = card
        self._charge_to = charge_to
        self._staging: list[tuple[torch.Tensor, Event]] = [
            (card.staging(size), card.event(f"staging {n} is free")) for n in range(2)
        ]
        self._turn = 0

    def place(
        self,
        unit: Unit,
        label: str,
        parts: Iterable[Part] | None = None,
        *,
        landed: bool = False,
    ) -> torch.Tensor:
        """Allocate, copy and bind one permanent unit, by default from its loaded storages.

        Where it came from may be freed after. With ``landed`` a copy that fails is raised here,
        before the unit is bound; without, by what waits for it next.
        """
        assert unit.lifetime is Lifetime.PERMANENT
        memory = self._card.allocate(unit.num_bytes, label)
        try:
            self._fill(memory, unit, label, loaded_parts(unit) if parts is None else parts)
            if landed:
                self._drain()
        except BaseException:
            try:
                self._drain()  # nothing may still be on its way into it
            finally:
                self._card.release(memory)
            raise
        unit.bind(memory)
        return memory

    def _fill(self, memory: torch.Tensor, unit: Unit, label: str, parts: Iterable[Part]) -> None:
        card = self._card
        born = card.event(f"born {label}")
        card.record(born, COMPUTE)
        card.wait(born, COPY)
        for span, read in parts:
            self._copy_in(memory[span.offset : span.offset + span.num_bytes], read, unit.name)

    def finish(self) -> None:
        """Wait for the last copies: the units may then be read, and the buffers freed."""
        self._drain()
        self._staging.clear()

    def _drain(self) -> None:
        with ExitStack() as waiting:  # for each buffer, whatever waiting for the other one raises
            for _, idle in self._staging:
                if idle.recorded:
                    waiting.callback(self._card.host_wait, idle)

    def _copy_in(self, destination: torch.Tensor, read: Reader, unit: str) -> None:
        size = self._staging[0][0].numel()
        for start in range(0, destination.numel(), size):
            piece = destination[start : start + size]
            buffer, idle = self._staging[self._turn]
            self._turn = 1 - self._turn
            if idle.recorded:  # its last copy may still be reading the buffer
                self._card.host_wait(idle)
            read(buffer[: piece.numel()], start)
            self._card.copy(piece, buffer[: piece.numel()], unit, self._charge_to)
            self._card.record(idle, COPY)
