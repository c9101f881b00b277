"""After the card ran out of memory: clean up, give up half of what is lent, and say so.

Called outside the ``except`` block: an error's frames hold the activations that filled the card.
"""

import gc

from deployments.errors import JobFailed
from offload import Card, Residency, format_bytes


def recover(residency: Residency, card: Card, said: str, size: str) -> str:
    """What happened and what was given up, in words; JobFailed where nothing is left to give up."""
    gc.collect()
    card.synchronize()
    card.empty_cache()
    component, door = residency.failed_in
    where = f"{component} ({door})" if component else "no component"
    trouble = f"the card ran out of memory at {size}, in {where}: {said}; {_now(card)}"
    given_up = residency.demote()
    if not given_up:
        raise JobFailed(f"{trouble}; nothing is left to give up: ask for a smaller size")
    return f"{trouble}; {given_up}"


def _now(card: Card) -> str:
    facts, usage = card.facts(), card.usage()
    others = max(0, facts.memory_bytes - facts.free_bytes - usage.reserved_bytes)
    return (
        f"now {format_bytes(facts.free_bytes)} are free, {format_bytes(usage.reserved_bytes)} "
        f"reserved here and {format_bytes(others)} held by others"
    )
