"""Gives the whole card back between requests, and takes it again: permanent memory and buffers.

A unit that the checkpoint's file still holds is dropped and read again; every other one is saved
in host memory meanwhile. Host copies of lent units stay as they are.
"""

from collections.abc import Iterable, Iterator

import torch

from offload.assembly import Assembly
from offload.cards.base import Card
from offload.checkpoint import Placement
from offload.errors import StateError
from offload.host_store import HostStore
from offload.parts import Part, file_parts, memory_parts
from offload.sources import OpenFiles
from offload.unit import Unit, UnitState

HOST = torch.device("cpu")


def fall_asleep(card: Card, store: HostStore, assemblies: Iterable[Assembly]) -> None:
    """Save what no file holds, then release everything; on failure nothing is released."""
    assemblies = list(assemblies)
    card.synchronize()
    saved: list[Unit] = []
    try:
        with OpenFiles() as files:
            for assembly in assemblies:
                for unit in _to_save(assembly, files):
                    saved.append(unit)
                    _save(card, store, unit)
    except BaseException:
        for unit in saved:
            store.drop(unit)
        raise
    _park(card, assemblies)
    card.empty_cache()


def wake_up(card: Card, store: HostStore, assemblies: Iterable[Assembly]) -> None:
    """Place everything again; on failure nothing is on the card, and all is still asleep."""
    assemblies = list(assemblies)
    try:
        with OpenFiles() as files:
            _open_all(assemblies, files)  # a file that is gone is told before anything is placed
            for assembly in assemblies:
                _place(card, assembly, files)
            files.check()
    except BaseException:
        _park(card, assemblies)
        raise
    for assembly in assemblies:
        for unit in assembly.permanent:
            store.drop(unit)
    card.take_timings()  # these copies are not the next request's


def read_back(store: HostStore, assemblies: Iterable[Assembly]) -> None:
    """Copy what was dropped from its files to host memory, for detaching while asleep."""
    read: list[Unit] = []
    try:
        with OpenFiles() as files:
            for assembly in assemblies:
                for unit in _sleeping(assembly):
                    if unit.host is None:
                        read.append(unit)
                        store.keep(unit, _parts(assembly, unit, files))
            files.check()
    except BaseException:
        for unit in read:
            store.drop(unit)
        raise


def _to_save(assembly: Assembly, files: OpenFiles) -> Iterator[Unit]:
    """Units that no file can give back; what somebody put in a weight's place comes first."""
    if assembly.adopted:
        assembly.origins.doubt(assembly.permanent)  # an adapter may be fused into them
    for unit, memory in assembly.permanent.items():
        if unit.keep_changes(memory):
            assembly.origins.doubt([unit])
        if not assembly.origins.still_hold(unit, files):
            yield unit


def _save(card: Card, store: HostStore, unit: Unit) -> None:
    assert unit.memory is not None
    with card.reading(unit.name, unit.memory):
        store.keep(unit, memory_parts(unit, unit.memory))


def _park(card: Card, assemblies: Iterable[Assembly]) -> None:
    for assembly in assemblies:
        assembly.move_whole(HOST)
        while assembly.permanent:
            unit, memory = assembly.permanent.popitem()
            unit.park()
            card.release(memory)


def _place(card: Card, assembly: Assembly, files: OpenFiles) -> None:
    units = list(_sleeping(assembly))
    assembly.move_whole(card.device)
    placement = Placement(card, max((u.num_bytes for u in units), default=1), assembly.plan.name)
    try:
        for unit in units:
            parts = _parts(assembly, unit, files)
            assembly.permanent[unit] = placement.place(unit, assembly.label(unit), parts)
    finally:
        placement.finish()


def _parts(assembly: Assembly, unit: Unit, files: OpenFiles) -> Iterator[Part]:
    if unit.host is not None:
        return memory_parts(unit, unit.host)
    return file_parts(unit, assembly.origins.ranges[unit], files)


def _open_all(assemblies: Iterable[Assembly], files: OpenFiles) -> None:
    for assembly in assemblies:
        for unit in _sleeping(assembly):
            if unit.host is None:
                for where in assembly.origins.ranges[unit]:
                    try:
                        files.open(where.source)
                    except StateError as error:
                        raise StateError(f"{assembly.plan.name} cannot wake: {error}") from None


def _sleeping(assembly: Assembly) -> Iterator[Unit]:
    units = [assembly.buffers, *assembly.all_units]
    return (unit for unit in units if unit.state is UnitState.ASLEEP)
