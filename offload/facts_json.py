"""Facts as JSON, and back: what was surveyed on one machine plans on another.

Knows the fields and what may stand in them; reads no file. Whatever it does not know is refused by
its name, so that a misspelt field is never a default in silence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from math import isfinite
from typing import Any, TypeVar

from offload.errors import SpecError
from offload.facts import ComponentFacts, UnitFacts

T = TypeVar("T", ComponentFacts, UnitFacts)
Reader = Callable[[Any, str], Any]  # value, where it stands -> what the field holds


def facts_to_dict(facts: Sequence[ComponentFacts]) -> list[dict[str, Any]]:
    """One mapping a component, for ``json.dumps``."""
    return [asdict(component) for component in facts]


def facts_from_dict(values: Sequence[Mapping[str, Any]]) -> tuple[ComponentFacts, ...]:
    """The facts again, equal to those written; SpecError names what cannot be read and where."""
    found = tuple(
        _component(value, f"component {i}") for i, value in enumerate(_items(values, "the facts"))
    )
    names = [component.name for component in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"the facts have {', '.join(twice)} twice; leave one of each")
    return found


def _component(value: Any, where: str) -> ComponentFacts:
    return _read(ComponentFacts, _COMPONENT, value, where)


def _unit(value: Any, where: str) -> UnitFacts:
    return _read(UnitFacts, _UNIT, value, where)


def _read(kind: type[T], readers: Mapping[str, Reader], value: Any, where: str) -> T:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} is {value!r}; give a mapping of {', '.join(readers)}")
    if isinstance(value.get("name"), str):
        where = f"{where} ({value['name']})"
    unknown = sorted(str(key) for key in value if key not in readers)
    if unknown:
        raise SpecError(f"{where} has {', '.join(unknown)}, which no field is; {_known(readers)}")
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.name not in value]
    if needed:
        raise SpecError(f"{where} lacks {', '.join(needed)}; survey the model again")
    return kind(**{name: readers[name](own, f"{where}, {name}") for name, own in value.items()})


def _known(readers: Mapping[str, Reader]) -> str:
    return f"known: {', '.join(readers)}"


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{where} is {value!r}; give a text")
    return value


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{where} is {value!r}; give a whole number of 0 or more")
    return value


def _seconds(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or value < 0:
        raise SpecError(f"{where} is {value!r}; give seconds of 0 or more")
    return float(value)


def _items(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise SpecError(f"{where} are {value!r}; give a list")
    return value


def _list_of(read: Reader) -> Reader:
    def read_all(value: Any, where: str) -> tuple[Any, ...]:
        return tuple(read(item, f"{where} {i}") for i, item in enumerate(_items(value, where)))

    return read_all


def _or_none(read: Reader) -> Reader:
    return lambda value, where: None if value is None else read(value, where)


def _setting(value: Any, where: str) -> tuple[str, int]:
    if len(_items(value, where)) != 2:
        raise SpecError(f"{where} is {value!r}; give a setting and bytes")
    return _text(value[0], where), _count(value[1], where)


_UNIT: Mapping[str, Reader] = {
    "name": _text,
    "list_name": _or_none(_text),
    "num_bytes": _count,
    "compute_s": _seconds,
    "first_s": _or_none(_seconds),
    "uses": _count,
    "pinned_to_card": _text,
}
_COMPONENT: Mapping[str, Reader] = {
    "name": _text,
    "group": _text,
    "trunk": _unit,
    "layers": _list_of(_unit),
    "buffer_bytes": _count,
    "activation_bytes": _count,
    "activation_source": _text,
    "activation_with": _list_of(_setting),
    "passes": _count,
    "gaps": _list_of(_list_of(_text)),
    "kept_in_trunk": _list_of(_text),
}
