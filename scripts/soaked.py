"""What a soak found, and what of it must not be. Numbers only; it asks nobody."""

from collections import Counter
from dataclasses import dataclass

from deployments.errors import OUTCOMES
from deployments.tables import format_table
from offload import format_bytes
from scripts.soak_clients import Ended
from scripts.soak_fleet import Resting

MOST_GROWTH = 0.05  # of a replica's memory
HEADER = ("kind", *OUTCOMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """One soak, from its start to its end."""

    ended: tuple[Ended, ...]
    counted: dict[str, int]  # by the driver, over the same time
    before: dict[str, Resting]  # by card
    between: dict[str, Resting]  # after the last kill: the processes are those at the end
    after: dict[str, Resting]
    killed: tuple[str, ...]  # replicas
    retried: int  # jobs that were drawn again elsewhere
    same_pictures: bool  # that one seed draws, before and after, on every card
    seconds: float

    @property
    def told(self) -> dict[str, int]:
        """How requests ended, by the clients."""
        counts = Counter(one.outcome for one in self.ended)
        return {**dict.fromkeys(OUTCOMES, 0), **counts}

    @property
    def faults(self) -> list[str]:
        """Empty where everything is as it must be."""
        found = [
            f"{one.kind} {one.request_id} ended {one.outcome}, not {one.expected} ({one.detail})"
            for one in self.ended
            if one.outcome != one.expected
        ]
        if self.told != self.counted:
            found.append(f"the clients counted {self.told}, the driver {self.counted}")
        if not self.same_pictures:
            found.append("a seed draws another picture than before")
        for card, now in self.after.items():
            found += held_wrongly(card, self.before[card], now)
            found += grown(card, self.between[card], now)
        return found

    def table(self) -> str:
        """One row a kind of request, then one line a card."""
        ends = Counter((one.kind, one.outcome) for one in self.ended)
        kinds = sorted({one.kind for one in self.ended})
        rows = [[kind, *(str(ends[kind, outcome]) for outcome in OUTCOMES)] for kind in kinds]
        rows.append(["clients", *map(str, self.told.values())])
        rows.append(["driver", *map(str, self.counted.values())])
        cards = [
            f"{card}: {now.allocated_bytes} bytes on it at rest ({then.allocated_bytes} before), "
            f"its replica takes {format_bytes(then.rss_bytes)}, "
            f"{format_bytes(self.between[card].rss_bytes)}, {format_bytes(now.rss_bytes)} "
            "(before, after the last kill, at the end)"
            for card, now in sorted(self.after.items())
            for then in [self.before[card]]
        ]
        ran = f"{len(self.ended)} requests in {self.seconds:.0f} s, {len(self.killed)} replicas "
        ran += f"killed, {self.retried} jobs drawn again"
        return "\n".join([format_table(HEADER, rows), *cards, ran])


def held_wrongly(card: str, then: Resting, now: Resting) -> list[str]:
    """What a card holds that it did not hold before, or its replica."""
    found = []
    if now.allocated_bytes != now.own_bytes:
        found.append(
            f"{card}: {now.allocated_bytes} bytes are on it, its components have {now.own_bytes}"
        )
    if now.allocated_bytes != then.allocated_bytes:
        found.append(
            f"{card}: {now.allocated_bytes} bytes are on it, {then.allocated_bytes} before"
        )
    return [*found, *grown(card, then, now)]


def grown(card: str, then: Resting, now: Resting) -> list[str]:
    """Where a replica takes more memory than one on the same card did before."""
    if now.rss_bytes <= then.rss_bytes * (1 + MOST_GROWTH):
        return []
    taken, before = format_bytes(now.rss_bytes), format_bytes(then.rss_bytes)
    return [f"{card}: its replica takes {taken}, {before} before"]
