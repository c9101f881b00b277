"""The built manifests, and what to say when KubeRay's schema is not at hand."""

import os

import pytest

from tests.k8s.manifests import Built, build

SCHEMA_DIR = os.environ.get("KUBERAY_SCHEMA_DIR", "")
collect_ignore = [] if SCHEMA_DIR else ["test_rayservice_schema.py"]


@pytest.fixture(scope="session")
def base() -> Built:
    return build("k8s/base")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SCHEMA_DIR:
        terminalreporter.write_line(
            "tests/k8s/test_rayservice_schema.py was not collected: set KUBERAY_SCHEMA_DIR to the "
            "folder of rayservices.v1.json to check the RayService against KubeRay's schema"
        )
