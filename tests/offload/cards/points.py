"""Events and ranges without a card, for tests of the order checker."""

from dataclasses import dataclass

from offload.cards.intervals import Range
from offload.cards.order import Clock


@dataclass
class Point:
    """An event, as far as the checker cares."""

    name: str = "point"
    clock: Clock | None = None


def span(start: int, end: int) -> Range:
    return Range(start=start, num_bytes=end - start)
