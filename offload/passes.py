"""One pass of a component: the calls between entering a door and leaving it, and what comes next.

Pure bookkeeping over the expected order; it moves nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from offload.history import PassKind, Recorder
from offload.plan import Lifetime
from offload.schedule import lookahead_units
from offload.unit import Unit


@dataclass(slots=True)
class Pass:
    """Where a pass stands in its expected order."""

    kind: PassKind
    order: Sequence[Unit]  # layers only, as the last like pass used them
    expected_uses: dict[Unit, int]
    more_passes: bool  # whether another pass of this component is expected in the request
    position: int = -1  # of the unit called last
    recorder: Recorder = field(default_factory=Recorder)
    index: dict[Unit, int] = field(init=False)
    lookahead: int = field(init=False)

    def __post_init__(self) -> None:
        self.index = {unit: i for i, unit in enumerate(self.order)}
        self.lookahead = lookahead_units(
            [unit.num_bytes for unit in self.order if unit.lifetime is not Lifetime.PERMANENT]
        )

    def entered(self, unit: Unit) -> None:
        self.recorder.used(unit.name)
        self.position = self.index.get(unit, self.position)

    def upcoming(self) -> Iterator[tuple[int, Unit]]:
        """(distance, unit) in the order of need: the rest of the pass, then what comes again."""
        ahead = self.position + 1
        for i in range(ahead, len(self.order)):
            yield i - self.position, self.order[i]
        for i in range(min(ahead, len(self.order))):
            if self._comes_again(self.order[i]):
                yield len(self.order) + i - self.position, self.order[i]

    def gate_before(self, distance: int) -> Unit | None:
        """The unit whose entry opens the way for the one ``distance`` ahead."""
        at = self.position + distance - self.lookahead
        return self.order[at] if 0 <= at < len(self.order) else None

    def _comes_again(self, unit: Unit) -> bool:
        left = self.expected_uses.get(unit, 0) - self.recorder.uses.get(unit.name, 0)
        return self.more_passes or left > 0
