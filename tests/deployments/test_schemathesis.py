"""The API keeps to its own description: no fault of ours, no status and no body it leaves out.

Requests are made from ``/openapi.json``: such as it allows, and such as it does not.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deployments.api import create_api
from deployments.config import AppConfig
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.test_api import ARGS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
API = create_api(AppConfig.model_validate(ARGS), FakeBackend())
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", API)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
CASES = [
    (label, mode)
    for label, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body  # any text is a path
]


def test_every_route_is_described():
    described = {label.split()[1] for label in OPERATIONS}
    assert {"/v1/images/generations", "/v1/images/edits", "/fleet", "/ready"} <= described
    assert len(CASES) > len(OPERATIONS)


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_answer_is_described(label, mode):
    seen = set()

    @settings(
        max_examples=20,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def answers(case):
        seen.add(case.call_and_validate(checks=CHECKS).status_code)

    answers()
    assert (
        200 in seen or "{" in label or mode is GenerationMode.NEGATIVE
    )  # no id is right by chance
