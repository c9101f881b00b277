"""What a request cost: the card's timings, written into the request's usage."""

from offload.cards.base import Card
from offload.report import ComponentUsage, RequestUsage


def charge(card: Card, usage: RequestUsage) -> None:
    """Add what the card has finished measuring, to the components that it was for."""
    for name, timing in card.take_timings().items():
        component = usage.components.setdefault(name, ComponentUsage())
        component.stall_s += timing.stall_s
        component.arming_s += timing.copy_s


def settle(card: Card, usage: RequestUsage, seconds: float) -> None:
    """At the end of a request."""
    charge(card, usage)
    usage.peak_bytes = card.usage().peak_bytes
    usage.seconds = seconds
