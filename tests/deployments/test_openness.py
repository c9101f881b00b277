"""A public address without API keys is warned of, and nothing else is."""

import subprocess
import sys

import pytest

from deployments.config import ServerConfig
from deployments.openness import openness_warning
from deployments.paths import ROOT


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_without_keys_is_warned_of(host):
    warning = openness_warning(host, ServerConfig())
    assert host in warning
    assert "server.api_keys_file" in warning
    assert openness_warning(host, ServerConfig(api_keys_file="keys")) == ""
    assert openness_warning(host, ServerConfig(api_keys_env="KEYS")) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", ""])
def test_a_private_address_is_not(host):
    assert openness_warning(host, ServerConfig()) == ""


def test_asking_where_no_cluster_runs_starts_none():
    asks = (
        "import ray; from deployments.openness import serve_host; "
        "assert serve_host() == ''; assert not ray.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", asks], cwd=ROOT, check=True, timeout=60)
