"""Bytes and rates as people write them; the only place where bytes become text, or text bytes.

Knows nothing of cards or components. Powers of two read GiB, powers of ten GB; what is printed is
always a power of two.
"""

import math
import re

from offload.errors import SpecError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_SHOWN = (("B", 1, 0), ("KiB", KIB, 1), ("MiB", MIB, 1))


def parse_bytes(value: str | int | float) -> int:
    """Read ``"24GiB"``, ``"1.5 GB"`` or a bare number of bytes; never negative."""
    return round(
        _quantity(value, f"{value!r} is no amount of memory; write '24GiB', '14MiB' or '24GB'")
    )


def parse_rate(value: str | int | float) -> float:
    """Read ``"400MB/s"`` or a bare number of bytes per second; always above zero."""
    hint = f"{value!r} is no rate; write '400MB/s' or '25GB/s'"
    text = value
    if isinstance(value, str):
        text, slash, per = value.strip().partition("/")
        if slash and per.strip() != "s":
            raise SpecError(hint)
    rate = _quantity(text, hint)
    if rate == 0:
        raise SpecError(hint)
    return float(rate)


def format_bytes(num_bytes: int | float) -> str:
    """``13.59 GiB``, ``14.0 MiB``, ``512 B``."""
    for name, size, digits in _SHOWN:
        # What would read 1024.0 of a unit is shown as 1 of the next.
        if abs(round(num_bytes / size, digits)) < 1024:
            return f"{num_bytes / size:.{digits}f} {name}"
    return f"{num_bytes / GIB:.2f} GiB"


def format_rate(bytes_per_s: float) -> str:
    """``381.5 MiB/s``."""
    return f"{format_bytes(bytes_per_s)}/s"


def _quantity(value: object, hint: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise SpecError(hint)
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value)
        if found is None or found[2].lower() not in _UNITS:
            raise SpecError(hint)
        return float(found[1]) * _UNITS[found[2].lower()]
    if value < 0 or not math.isfinite(value):
        raise SpecError(hint)
    return value
