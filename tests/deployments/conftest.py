"""One small Ray cluster with the quickstart application, shared by every test that needs one.

The environment is set before Ray is imported anywhere.
"""

import atexit
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")
os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.05")
os.environ.setdefault("RAY_worker_niceness", "0")  # else replicas starve beside other tests
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # a busy machine is slow

from deployments.config import AppConfig
from deployments.paths import ROOT

APP = "tenure"
RECORDS = tempfile.mkdtemp(prefix="tenure-records-")  # so that a replica measures once a session
atexit.register(shutil.rmtree, RECORDS, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def quickstart_args() -> dict[str, Any]:
    """The ``args`` of the quickstart, on simulated cards wherever the test runs."""
    file = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    args: dict[str, Any] = file["applications"][0]["args"]
    args["cards"]["gpu"] = "never"
    args["calibration_dir"] = RECORDS
    return args


def wait_for(
    what: str,
    happened: Callable[[], Any],
    timeout_s: float = 60.0,
    seen: Callable[[], object] = lambda: "",
) -> Any:
    """The first true answer, asked five times a second; ``seen`` is shown when there is none."""
    deadline = time.monotonic() + timeout_s
    while not (answer := happened()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}; seen: {seen()}"
        time.sleep(0.2)
    return answer


@dataclass(frozen=True)
class Server:
    """A running application, as its clients see it."""

    client: httpx.Client

    def fleet(self) -> dict[str, Any]:
        answer = self.client.get("/fleet")
        return answer.json() if answer.status_code == 200 else {"replicas": []}

    def ready(self) -> dict[str, dict[str, Any]]:
        """Card name -> replica, of those that could draw at once."""
        replicas = self.fleet()["replicas"]
        return {r["card"]["name"]: r for r in replicas if r["state"] == "ready"}

    def draw(self, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        body = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 7, **fields}
        return self.client.post("/v1/images/generations", json=body, headers=headers)

    def states(self) -> list[str]:
        return sorted(replica["state"] for replica in self.fleet()["replicas"])

    def wait_for_states(self, *states: str) -> None:
        """Until the fleet has these replicas and no other one, not even one that starts."""
        wanted = sorted(states)
        wait_for(f"{wanted}", lambda: self.states() == wanted, seen=self.answer)

    def answer(self) -> str:
        """The fleet page as it is sent, without the long parts."""
        answer = self.client.get("/fleet")
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        return str([(r["id"], r["state"], r["detail"]) for r in answer.json()["replicas"]])

    def wait_until_ready(self, num_replicas: int = 2) -> dict[str, dict[str, Any]]:
        """Card name -> replica; every replica of the fleet is ready, and none starts or leaves."""
        self.wait_for_states(*["ready"] * num_replicas)
        return self.ready()


def deploy(args: dict[str, Any]) -> None:
    """Deploy, or deploy anew, and wait until it runs."""
    from ray import serve

    from deployments.app import build_app

    serve.run(build_app(AppConfig.model_validate(args)), name=APP, route_prefix="/")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The quickstart on a cluster of this test session alone."""
    import ray
    from ray import serve

    port = free_port()
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deploy(quickstart_args())
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        running = Server(client)
        running.wait_until_ready()
        yield running
    serve.shutdown()
    ray.shutdown()
