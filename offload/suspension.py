"""Opening managed modules for others, and taking them back with what was changed.

Inside, parameters are bound to host memory, permanent ones to the card; nothing is copied for that.
"""

from collections.abc import Iterable

from offload.assembly import Assembly


def open_up(assemblies: Iterable[Assembly]) -> None:
    """Bind lent units to their host copies: plain, complete parameters."""
    for assembly in assemblies:
        assembly.origins.doubt(assembly.permanent)  # changes in place are not seen
        for unit in assembly.all_units:
            if unit.host is not None:
                unit.bind(unit.host)


def keep_changes(assemblies: Iterable[Assembly]) -> None:
    """Write replaced data back to where each unit keeps it; StateError on another shape."""
    for assembly in assemblies:
        for unit in assembly.all_units:
            if unit.memory is not None:
                unit.keep_changes(unit.memory)


def take_back(assemblies: Iterable[Assembly]) -> None:
    """Lent units to their placeholders, permanent ones to the card."""
    for assembly in assemblies:
        for unit in assembly.all_units:
            if unit.host is not None:
                unit.release()
                unit.forget()
            elif unit.memory is not None:
                unit.bind(unit.memory)
