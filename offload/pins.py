"""Page-locks a residency's host copies within its share, again after each change of plan.

It joins the ranking with the host store; what may be locked is somebody else's answer.
"""

from collections.abc import Iterable, Mapping, Sequence

from offload.assembly import Assembly
from offload.facts import ComponentFacts
from offload.host_store import HostStore
from offload.pin_budget import (
    Pinned,
    PinShare,
    locked_bytes,
    pin_line,
    rank_for_pins,
)
from offload.plan import ResidencyPlan


def renew_pins(
    store: HostStore,
    assemblies: Mapping[str, Assembly],
    plan: ResidencyPlan,
    facts: Sequence[ComponentFacts],
    share: PinShare,
) -> str:
    """Lock what the share allows under this plan; what came of it, in one line.

    Only while no copy is under way. Nothing is asked or said where the card has no use for pins.
    """
    if not store.can_pin:
        return ""
    units = {(name, unit.name): unit for name, one in assemblies.items() for unit in one.units}
    ranked = [units[unit.component, unit.name] for unit in rank_for_pins(plan, facts)]
    budget = share.ask(sum(locked_bytes(unit.num_bytes) for unit in ranked))
    store.pin(ranked, budget.num_bytes)
    share.tell(store.pinned_bytes)
    return pin_line(_pinned(store, assemblies.values()), budget)


def _pinned(store: HostStore, assemblies: Iterable[Assembly]) -> Iterable[Pinned]:
    for assembly in assemblies:
        lent = [unit for unit in assembly.units if unit.host is not None]
        yield Pinned(
            component=assembly.plan.name,
            host_bytes=sum(locked_bytes(unit.num_bytes) for unit in lent),
            pinned_bytes=sum(map(store.pinned_bytes_of, lent)),
        )
