"""What is held now, from the card, the host store and the components."""

from collections.abc import Mapping

from offload.assembly import Assembly
from offload.cards.base import Card
from offload.component import Component
from offload.host_store import HostStore
from offload.report import CardReport, ComponentReport, HostReport, Snapshot


def take_snapshot(
    card: Card,
    store: HostStore,
    assemblies: Mapping[str, Assembly],
    components: Mapping[str, Component],
) -> Snapshot:
    """One moment of a residency; nothing in it comes from the plan but what was decided."""
    usage = card.usage()
    return Snapshot(
        card=CardReport(
            name=card.name,
            memory_bytes=usage.memory_bytes,
            allocated_bytes=usage.allocated_bytes,
            reserved_bytes=usage.reserved_bytes,
            peak_bytes=usage.peak_bytes,
        ),
        host=HostReport(
            store_bytes=store.store_bytes, pinned_bytes=store.pinned_bytes, shared=False
        ),
        components={
            name: _report(component, assemblies[name]) for name, component in components.items()
        },
    )


def _report(component: Component, assembly: Assembly) -> ComponentReport:
    units = [*assembly.all_units, assembly.buffers]  # all may be saved in host memory by sleep
    permanent = sum(memory.numel() for memory in assembly.permanent.values())
    lent = component.run.held_bytes if component.run is not None else 0
    return ComponentReport.of(
        component.plan,
        on_card_bytes=permanent + lent,
        host_bytes=sum(unit.host.numel() for unit in units if unit.host is not None),
    )
