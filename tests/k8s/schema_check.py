"""Checks a resource against a structural OpenAPI schema the way an API server does.

Nulls are dropped and defaults applied before ``required`` is looked at, unknown fields are refused,
and the items of a list that is a map have distinct keys. CEL rules are not evaluated.
"""

from collections.abc import Iterator
from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """One line per violation, each beginning with the path of the field."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{path}: {value!r} is neither integer nor string"
        return
    kind = schema.get("type")
    if kind and not _is(value, kind):
        yield f"{path}: {value!r} is not of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield f"{path}: longer than {schema['maxLength']}"
    if kind == "object":
        yield from _object_problems(value, schema, path)
    elif kind == "array":
        yield from _array_problems(value, schema, path)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def _object_problems(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    known = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or not (known or extra)
    present = {key: item for key, item in value.items() if item is not None}
    defaults = {key: s["default"] for key, s in known.items() if "default" in s}
    for key in schema.get("required", ()):
        if key not in defaults | present:
            yield f"{path}.{key}: required"
    for key, item in present.items():
        if key in known:
            yield from problems(item, known[key], f"{path}.{key}")
        elif isinstance(extra, dict):
            yield from problems(item, extra, f"{path}.{key}")
        elif not free and extra is not True:
            yield f"{path}.{key}: unknown field"


def _array_problems(value: list[Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for index, item in enumerate(value):
        yield from problems(item, schema["items"], f"{path}[{index}]")
    if schema.get("x-kubernetes-list-type") == "map":
        names = schema["x-kubernetes-list-map-keys"]
        defaults = schema["items"].get("properties", {})
        keys = [tuple(i.get(n, defaults.get(n, {}).get("default")) for n in names) for i in value]
        for key in {k for k in keys if keys.count(k) > 1}:
            yield f"{path}: {names} {key} twice"
