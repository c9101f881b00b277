"""A public address without API keys is warned of, and nothing else is."""

import pytest

from deployments.config import ServerConfig
from deployments.openness import openness_warning, serve_host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_without_keys_is_warned_of(host):
    warning = openness_warning(host, ServerConfig())
    assert host in warning
    assert "server.api_keys_file" in warning
    assert openness_warning(host, ServerConfig(api_keys_file="keys")) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", ""])
def test_a_private_address_is_not(host):
    assert openness_warning(host, ServerConfig()) == ""


def test_without_serve_there_is_no_address():
    assert serve_host() == ""
