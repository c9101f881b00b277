"""Turns loaded modules and a plan into managed components: build units, place, host, release.

Permanent units are placed first of all, each from what the checkpoint gave; the others get a host
copy, unit by unit, so that no component is ever held twice.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from offload.cards.base import Card
from offload.checkpoint import Placement
from offload.errors import StateError
from offload.host_store import HostStore
from offload.origins import Origins
from offload.plan import ComponentPlan, Lifetime
from offload.sizes import format_bytes
from offload.sources import Mappings
from offload.survey import FoundUnit, find_units, storage_key, unique_buffers
from offload.unit import Unit, UnitState

logger = logging.getLogger("offload")
Progress = Callable[[str, int, int], None]  # component, units done, units in all


def silent(component: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


@dataclass(slots=True)
class Assembly:
    """One component's units with what holds them; ``take_apart`` gives plain modules back."""

    root: nn.Module
    plan: ComponentPlan
    units: list[Unit]
    buffers: Unit
    home: torch.device  # where the module came from
    permanent: dict[Unit, torch.Tensor] = field(default_factory=dict)  # card, uint8 1-D each
    adopted: list[Unit] = field(default_factory=list)  # added by others since: permanent
    origins: Origins = field(default_factory=Origins)  # where sleep finds permanent units again

    @property
    def all_units(self) -> list[Unit]:
        """Planned and adopted ones; the buffers are no unit."""
        return [*self.units, *self.adopted]

    @property
    def adopted_bytes(self) -> int:
        return sum(unit.num_bytes for unit in self.adopted)

    @classmethod
    def build(
        cls,
        root: nn.Module,
        plan: ComponentPlan,
        device: torch.device,
        keep_in_trunk: Collection[str] = (),
    ) -> "Assembly":
        """Read the layout; nothing moves yet. StateError where the plan is not of this module."""
        lifetimes = {unit.name: unit.lifetime for unit in plan.units}
        found_units = find_units(root, keep_in_trunk)
        names = [found.name for found in found_units]
        if names != [unit.name for unit in plan.units]:
            raise StateError(
                f"the plan of {plan.name} has {len(plan.units)} units and the module {len(names)}, "
                "or others: plan again from a survey of this module"
            )
        for found in found_units:
            if found.pinned_to_card and lifetimes[found.name] is not Lifetime.PERMANENT:
                raise StateError(
                    f"the plan lends {plan.name}.{found.name}, but {found.pinned_to_card}: plan "
                    "again from a survey of this module"
                )
        units = [Unit.build(found, lifetimes[found.name], device) for found in found_units]
        first = next(root.parameters(), None)
        home = torch.device("cpu") if first is None else first.device
        return cls(root, plan, units, _buffer_unit(root, device), home)

    def place(self, card: Card, store: HostStore, progress: Progress) -> None:
        """Permanent units to the card, then the others to the host store and out of the module."""
        largest = max(unit.num_bytes for unit in [*self.units, self.buffers])
        placement = Placement(card, largest, self.plan.name)
        total = len(self.units)
        progress(self.plan.name, 0, total)
        mappings = Mappings.read()
        try:
            for done, unit in enumerate(self._ordered()):  # buffers come first and are no unit
                if unit is not self.buffers:  # which change while they are used
                    self.origins.note(unit, mappings)  # lent ones too: another plan may place them
                if unit.lifetime is Lifetime.PERMANENT:
                    self._place(unit, placement, card.device)
                else:
                    store.host(unit)
                    unit.release()
                progress(self.plan.name, done, total)
        finally:
            placement.finish()

    def take_apart(self, card: Card, store: HostStore) -> None:
        """Plain, complete parameters on the device they came from; card and store let go."""
        for unit in [*self.all_units, self.buffers]:
            _move_whole(unit, self.home)
            if unit.state is UnitState.LOADED:
                continue
            source = unit.host if unit.memory is None else unit.memory
            if source is not None:
                home = source.to(self.home, copy=True)
                unit.forget()
                unit.bind(home)
            unit.forget()
            store.drop(unit)
        for memory in self.permanent.values():
            card.release(memory)
        self.permanent.clear()
        self.adopted.clear()

    def adopt(self, card: Card) -> int:
        """Place parameters that others added, such as an adapter's, for good; returns their bytes.

        Those of an adapter that was taken out again leave the card.
        """
        present = {id(parameter): name for name, parameter in self.root.named_parameters()}
        for unit in [
            u for u in self.adopted if not any(id(p) in present for p in u.parameters.values())
        ]:
            self.adopted.remove(unit)
            if unit.memory is not None:  # whoever still has its parameters keeps no card memory
                unit.bind(unit.memory.to(self.home, copy=True))
            unit.forget()
            if unit in self.permanent:
                card.release(self.permanent.pop(unit))
            self.origins.doubt(self.permanent)  # it may have been fused into them before
        known = {id(p) for unit in self.all_units for p in unit.parameters.values()}
        added = {n: p for n, p in self.root.named_parameters() if id(p) not in known}
        if not added:
            return 0
        found = FoundUnit(f"added {len(self.adopted)}", None, None, added)
        unit = Unit.build(found, Lifetime.PERMANENT, card.device)
        placement = Placement(card, unit.num_bytes, self.plan.name)
        try:
            self._place(unit, placement, card.device)
        finally:
            placement.finish()
        self.adopted.append(unit)
        size = format_bytes(unit.num_bytes)
        logger.info(f"{self.plan.name}: {size} added since attach stay on the card")
        return unit.num_bytes

    def _ordered(self) -> Iterator[Unit]:
        yield self.buffers
        yield from (u for u in self.units if u.lifetime is Lifetime.PERMANENT)
        yield from (u for u in self.units if u.lifetime is not Lifetime.PERMANENT)

    def _place(self, unit: Unit, placement: Placement, device: torch.device) -> None:
        _move_whole(unit, device)
        if unit.num_bytes:
            self.permanent[unit] = placement.place(unit, self.label(unit))

    def label(self, unit: Unit) -> str:
        """The name of a permanent unit in the card's ledger."""
        return f"{self.plan.name}/permanent/{unit.name}"

    def move_whole(self, device: torch.device) -> None:
        """Move the weights that only move as a whole, which lie beside the units' memory."""
        for unit in self.all_units:
            _move_whole(unit, device)


def _move_whole(unit: Unit, device: torch.device) -> None:
    """Parameters that only move as a whole; identity kept."""
    for parameter in unit.parameters.values():
        if is_traceable_wrapper_subclass(parameter) and parameter.device != device:
            moved = nn.Parameter(parameter.to(device), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, moved)


def _buffer_unit(root: nn.Module, device: torch.device) -> Unit:
    """Buffers live on the card from load on, alive and mutable; they move as one permanent unit."""
    weights = {storage_key(parameter) for parameter in root.parameters()}
    buffers = {
        name: buffer
        for name, buffer in unique_buffers(root).items()
        if not is_traceable_wrapper_subclass(buffer) and storage_key(buffer) not in weights
    }
    found = FoundUnit("buffers", None, None, buffers)  # type: ignore[arg-type]
    return Unit.build(found, Lifetime.PERMANENT, device)
