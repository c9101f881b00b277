"""Warns when everyone on the network may draw: a public address without API keys."""

import logging
from ipaddress import ip_address

import ray
from ray.serve.context import _get_global_client

from deployments.config import ServerConfig

logger = logging.getLogger("ray.serve")


def openness_warning(host: str, server: ServerConfig) -> str:
    """One sentence for a public address without keys, else nothing."""
    if server.needs_keys or not is_public(host):
        return ""
    return (
        f"the server listens on {host} and anyone who reaches it may draw: set "
        "server.api_keys_file, or host 127.0.0.1 in http_options"
    )


def is_public(host: str) -> bool:
    """Whether other machines may reach this address; a name counts as public."""
    if host in ("", "localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def warn_if_open(server: ServerConfig) -> None:
    """Say so in the log, where Serve tells on which address it listens."""
    warning = openness_warning(serve_host(), server)
    if warning:
        logger.warning(warning)


def serve_host() -> str:
    """The address that Serve's proxies bind; empty where there is no Serve, as in unit tests."""
    if not ray.is_initialized():
        return ""  # asking would start a cluster
    client = _get_global_client(raise_if_no_controller_running=False)
    return str(client.http_config.host or "") if client is not None else ""
