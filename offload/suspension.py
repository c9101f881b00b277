"""Opening managed modules for others, and taking them back with what was changed.

Inside, parameters are bound to host memory, permanent ones to the card; nothing is copied for that.
"""

from collections.abc import Iterable

from offload.unit import Unit


def open_up(units: Iterable[Unit]) -> None:
    """Bind lent units to their host copies: plain, complete parameters."""
    for unit in units:
        if unit.host is not None:
            unit.bind(unit.host)


def keep_changes(units: Iterable[Unit]) -> None:
    """Write replaced data back to where each unit keeps it; StateError on another shape."""
    for unit in units:
        if unit.memory is not None:
            unit.keep_changes(unit.memory)


def take_back(units: Iterable[Unit]) -> None:
    """Lent units to their placeholders, permanent ones to the card."""
    for unit in units:
        if unit.host is not None:
            unit.release()
            unit.forget()
        elif unit.memory is not None:
            unit.bind(unit.memory)
