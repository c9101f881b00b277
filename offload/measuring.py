"""Puts a probe on a residency for one request, and takes everything off again.

Layers of permanent components are watched meanwhile as the others always are. Measuring costs time
on the host; outside it nothing of it is there.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from offload.cards.base import Card
from offload.component import Component
from offload.listener import Listener
from offload.probe import Probe
from offload.requests import Requests


@contextmanager
def measuring(
    card: Card, requests: Requests, components: Iterable[Component], source: str, live: bool
) -> Iterator[Probe]:
    """Exactly one request belongs inside; ``probe.measured()`` tells afterwards what it took.

    ``source`` says of which request ("measured at 128x128"). Without ``live`` a simulated card
    does not look at activations, whose counting multiplies the host's time: for seconds of a wall
    clock, to be put together with another request's by ``offload.with_live_bytes``. An error that
    leaves the block makes the probe teach nothing.
    """
    probe = Probe(card, source)
    with ExitStack() as stack:
        for component in components:
            if not stack.enter_context(component.watched_closely()):
                probe.unseen[component.name] = [unit.name for unit in component.layers]
        if live:
            stack.enter_context(card.watching_activations())
        stack.callback(setattr, requests, "listener", Listener())
        requests.listener = probe
        try:
            yield probe
        except BaseException:
            probe.failure = "the block that it was measured in failed"
            raise
