"""The schema check refuses what an API server refuses, and nothing else."""

import pytest

from tests.k8s.schema_check import problems

PORT = {
    "type": "object",
    "required": ["port", "protocol"],
    "properties": {
        "port": {"type": "integer"},
        "protocol": {"type": "string", "default": "TCP", "enum": ["TCP", "UDP"]},
        "target": {"x-kubernetes-int-or-string": True},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "name": {"type": "string", "maxLength": 5},
        "ports": {
            "type": "array",
            "items": PORT,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
        },
    },
}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"metadata": {"anything": 1}},
        {"labels": {"a/b": "c"}},
        {"name": None},
        {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP", "target": "http"}]},
    ],
    ids=str,
)
def test_what_an_api_server_takes_has_no_problem(value):
    assert list(problems(value, SCHEMA)) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"nme": "x"}, ".nme: unknown field"),
        ({"labels": {"a": 1}}, ".labels.a: 1 is not of type string"),
        ({"name": "longer"}, ".name: longer than 5"),
        ({"ports": [{"protocol": "TCP"}]}, ".ports[0].port: required"),
        ({"ports": [{"port": None}]}, ".ports[0].port: required"),
        ({"ports": [{"port": True}]}, ".ports[0].port: True is not of type integer"),
        ({"ports": [{"port": 1, "protocol": "tcp"}]}, "'tcp' is not one of"),
        ({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}, "twice"),
        ({"ports": [{"port": 1, "target": 1.5}]}, "neither integer nor string"),
    ],
    ids=str,
)
def test_what_an_api_server_refuses_is_named(value, problem):
    (found,) = problems(value, SCHEMA)
    assert problem in found
