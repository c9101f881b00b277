"""Compares Tenure's router with Ray Serve's default on a running fleet of simulated cards.

    python -m scripts.routing_live

Three replicas draw the demo model on simulated cards whose links are 4, 2 and 1 times as fast as
the slowest; weights stream in every step, so that a picture takes as long as its copies. The same
requests come at the same times to both routers.
"""

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from ray import serve
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import RunningReplica

from deployments import fleet
from deployments.app import ROUTER, bind
from deployments.config import AppConfig
from deployments.tables import format_table
from scripts.local_serve import local_serve, wait_for

KINDS = {"fast": 4, "middle": 2, "slow": 1}
RATE_MB_S = 8  # of the slowest link
SHAPES = ({"num_inference_steps": 2}, {"num_inference_steps": 4}, {"num_inference_steps": 8})
HEADER = ("router", "p50", "p95", "makespan", "served", ":".join(KINDS))


class DefaultRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # Ray has no types
    """Ray's own choice; the registry is told as well, so that /fleet names the cards."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        fleet.FLEET.set_running(replicas)


def config() -> AppConfig:
    """Cards so small that everything streams."""
    simulated = [
        {"name": kind, "memory": "9MiB", "rate": f"{RATE_MB_S * times}MB/s"}
        for kind, times in KINDS.items()
    ]
    model = {"name": "demo", "path": "deployments/demo/checkpoint", "dtype": "float32"}
    return AppConfig.model_validate(
        {
            "model": model,
            "components": {"all": {"resident_layers": "none"}},
            "cards": {"gpu": "never", "simulated": simulated},
            "limits": {"max_pixels": 16384},
            "defaults": {"size": "64x64", "steps": 4},
            "calibrate": False,
        }
    )


def draw(client: httpx.Client, at_s: float, began: float, fields: dict[str, Any]) -> httpx.Response:
    """One request at its time."""
    time.sleep(max(0.0, began + at_s - time.monotonic()))
    return client.post("/v1/images/generations", json={"prompt": "a red circle", **fields})


def row(client: httpx.Client, name: str, requests: list[tuple[float, dict[str, Any]]]) -> list[str]:
    """Send them all and say how it went."""
    cards = {r["id"]: r["card"]["name"] for r in client.get("/fleet").json()["replicas"]}
    began = time.monotonic()

    def timed(request: tuple[float, dict[str, Any]]) -> tuple[float, str]:
        answer = draw(client, request[0], began, request[1])
        answer.raise_for_status()
        latency_s = time.monotonic() - began - request[0]
        return latency_s, cards[answer.headers["X-Tenure-Replica"]]

    with ThreadPoolExecutor(len(requests)) as pool:
        ended = list(pool.map(timed, requests))
    makespan_s = time.monotonic() - began
    latencies = statistics.quantiles([s for s, _ in ended], n=100, method="inclusive")
    chosen = Counter(card for _, card in ended)
    return [
        name,
        f"{latencies[49]:.2f} s",
        f"{latencies[94]:.2f} s",
        f"{makespan_s:.1f} s",
        str(len(ended)),
        ":".join(str(chosen[kind]) for kind in KINDS),
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(usage="python -m scripts.routing_live")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--every", type=float, default=1.2, help="mean seconds between requests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, at_s, requests = random.Random(options.seed), 0.0, []
    for _ in range(options.requests):
        at_s += rng.expovariate(1 / options.every)
        requests.append((at_s, rng.choice(SHAPES)))
    rows = []
    routers = {"Tenure": ROUTER, "Ray's default": f"{__spec__.name}:{DefaultRouter.__name__}"}
    with local_serve() as client:
        for name, router in routers.items():
            serve.run(bind(config(), router=router), name="tenure", route_prefix="/")
            wait_for("three replicas", lambda: ready(client) == len(KINDS))
            rows.append(row(client, name, requests))
            serve.delete("tenure")
    print(format_table(HEADER, rows))
    return 0


def ready(client: httpx.Client) -> int:
    answer = client.get("/fleet")
    return answer.json()["totals"]["ready"] if answer.status_code == 200 else 0


if __name__ == "__main__":
    sys.exit(main())
