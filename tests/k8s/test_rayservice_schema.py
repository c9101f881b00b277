"""The RayService against KubeRay's own schema; collected where KUBERAY_SCHEMA_DIR is set."""

import copy
import json
from pathlib import Path

import pytest

from tests.k8s.conftest import SCHEMA_DIR
from tests.k8s.schema_check import problems


@pytest.fixture(scope="module")
def schema():
    return json.loads((Path(SCHEMA_DIR) / "rayservices.v1.json").read_text())


def test_kuberay_takes_the_rayservice(base, schema):
    assert list(problems(base.the("RayService"), schema)) == []


def test_a_misspelt_field_would_be_seen(base, schema):
    changed = copy.deepcopy(base.the("RayService"))
    changed["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["minReplica"] = 1
    (problem,) = problems(changed, schema)
    assert "minReplica: unknown field" in problem
