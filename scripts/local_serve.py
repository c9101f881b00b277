"""A Ray cluster with Serve on this machine, for measurements: started, used, stopped.

It knows nothing of what is served. ``RAY_...`` variables are set before Ray is imported.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
DEADLINE_S = 180.0


@contextmanager
def local_serve() -> Iterator[httpx.Client]:
    """A client of the HTTP proxy."""
    import ray
    from ray import serve

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
        logging_level="error",
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=QUIET)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


QUIET = {"log_level": "ERROR", "enable_access_log": False}


def wait_for(what: str, happened: Callable[[], bool]) -> float:
    """Seconds until it happened."""
    began = time.perf_counter()
    while not happened():
        if time.perf_counter() - began > DEADLINE_S:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(0.05)
    return time.perf_counter() - began
