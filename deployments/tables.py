"""Tables for a terminal: what a plan and a fleet look like to a person.

Knows the dicts that ``plan_to_dict`` and ``/fleet`` give; decides and fetches nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offload import format_bytes

GAP = "  "
PLAN_HEADER = ("component", "layers", "lifetime", "stays", "while it runs", "streamed")
FLEET_HEADER = ("replica", "card", "free", "memory", "state", "queue", "served", "p50", "residency")


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines)


def plan_table(components: Sequence[Mapping[str, Any]]) -> str:
    """One row a component, from its report."""
    return format_table(PLAN_HEADER, map(_plan_row, components))


def _plan_row(report: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        report["name"],
        f"{report['resident_layers']}/{report['layers']}",
        report["lifetime"],
        _bytes(report["permanent_bytes"]),
        _bytes(report["forward_bytes"]),
        _bytes(report["streamed_bytes"]),
    )


def fleet_table(fleet: Mapping[str, Any]) -> str:
    """One row a replica."""
    return format_table(FLEET_HEADER, map(_fleet_row, fleet["replicas"]))


def _fleet_row(replica: Mapping[str, Any]) -> tuple[str, ...]:
    card, p50_s = replica["card"], replica["latency"].get("p50_s")
    state = f"{replica['state']}: {replica['detail']}" if replica["detail"] else replica["state"]
    return (
        replica["id"],
        card["name"],
        format_bytes(card["free_bytes"]),
        format_bytes(card["memory_bytes"]),
        state,
        str(replica["queue"]),
        str(replica["served"]),
        f"{p50_s:.2f} s" if p50_s else "-",
        ", ".join(map(_residency, replica["components"])) or "-",
    )


def _residency(report: Mapping[str, Any]) -> str:
    layers = f"{report['resident_layers']}/{report['layers']}"
    return f"{report['name']} {layers} {report['lifetime']}"


def _bytes(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "-"
