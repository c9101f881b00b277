"""Tables for a terminal: what a survey, a plan and a fleet look like to a person.

Knows facts, and the dicts that ``plan_to_dict`` and ``/fleet`` give; decides and fetches nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offload import ComponentFacts, format_bytes

GAP = "  "
PLAN_HEADER = ("component", "layers", "lifetime", "stays", "while it runs", "streamed")
SURVEY_HEADER = ("component", "layers", "weights", "trunk", "largest layer", "buffers")
CARDS_HEADER = ("card", "free", "wish", "request", "copied", "peak", "residency")
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


def survey_table(facts: Sequence[ComponentFacts]) -> str:
    """One row a component, then the lists that its layers come from."""
    lists = [
        f"{one.name}: {', '.join(f'{name} {count}' for name, count in one.lists.items()) or 'none'}"
        for one in facts
    ]
    return "\n".join([format_table(SURVEY_HEADER, map(_survey_row, facts)), "", *lists])


def _survey_row(facts: ComponentFacts) -> tuple[str, ...]:
    return (
        facts.name,
        str(len(facts.layers)),
        _bytes(facts.weight_bytes),
        _bytes(facts.trunk.num_bytes),
        _bytes(max((layer.num_bytes for layer in facts.layers), default=0)),
        _bytes(facts.buffer_bytes),
    )


def cards_table(found: Iterable[Mapping[str, Any]]) -> str:
    """One row a card: whether the wish fits, and what a request costs there."""
    return format_table(CARDS_HEADER, map(_card_row, found))


def _card_row(found: Mapping[str, Any]) -> tuple[str, ...]:
    card = (found["card"]["name"], format_bytes(found["card"]["free_bytes"]))
    if "why" in found:
        return (*card, "nothing fits", "-", "-", "-", found["why"])
    ahead = found["predicted"]
    return (
        *card,
        "fits" if found["wish_fits"] else "shrunk",
        f"{ahead['request_s']:.3f} s",
        format_bytes(ahead["h2d_bytes"]),
        format_bytes(ahead["peak_bytes"]),
        ", ".join(map(_residency, found["components"])),
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
