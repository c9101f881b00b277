"""What the driver itself costs, beside a plain Ray Serve application in the same run.

    python -m scripts.driver_cost

Both answer the same picture over HTTP from two replicas that draw nothing, one request at a time
each: what is left is the front. ``--quickstart`` also times the start of configs/quickstart.yaml.
"""

import argparse
import base64
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from deployments.app import bind, build_app
from deployments.config import AppConfig
from deployments.serve_file import read_serve_file
from deployments.tables import format_table
from scripts.local_serve import local_serve, wait_for
from scripts.no_op import PICTURE, NoOpReplica

REPLICAS, CLIENTS = 2, 16
HEADER = ("front", "p50", "p95", f"requests per second, {CLIENTS} clients")
BODY = {"prompt": "a red circle", "seed": 7}
PATH = "/v1/images/generations"
plain = FastAPI()


class PlainReplica:
    """What remains of a replica when nothing is left out but the work."""

    async def generate(self, values: dict[str, Any]) -> dict[str, Any]:
        return {"seed": values["seed"], "png": PICTURE}


@serve.ingress(plain)
class PlainFront:
    """The shortest front: JSON in, one call by handle, JSON out."""

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas

    @plain.post(PATH)
    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        drawn = await self._replicas.generate.remote(body)
        picture = base64.b64encode(drawn["png"]).decode()
        return {"data": [{"b64_json": picture, "seed": drawn["seed"]}]}


def plain_app() -> Application:
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
    replicas = serve.deployment(
        PlainReplica, num_replicas=REPLICAS, max_ongoing_requests=1, **options
    )
    front = serve.deployment(PlainFront, max_ongoing_requests=256, **options)
    return front.bind(replicas.bind())


def tenure_app() -> Application:
    simulated = [{"name": f"none-{i}", "memory": "1MiB"} for i in range(REPLICAS)]
    values = {
        "model": {"name": "demo"},
        "cards": {"gpu": "never", "simulated": simulated},
        "defaults": {"size": "64x64", "steps": 1},
    }
    return bind(AppConfig.model_validate(values), NoOpReplica)


def measure(client: httpx.Client, name: str, num_requests: int) -> list[str]:
    """One after the other for the latency, then many at once for the rate."""

    def post(_: int = 0) -> float:
        began = time.perf_counter()
        client.post(PATH, json=BODY).raise_for_status()
        return time.perf_counter() - began

    wait_for(name, lambda: client.post(PATH, json=BODY).status_code == 200)
    for _ in range(20):
        post()
    spent = statistics.quantiles([post() for _ in range(num_requests)], n=20)
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(post, range(num_requests)))
    rate = num_requests / (time.perf_counter() - began)
    return [name, f"{1000 * spent[9]:.1f} ms", f"{1000 * spent[18]:.1f} ms", f"{rate:.0f}"]


def start_up(client: httpx.Client) -> str:
    """The quickstart on simulated cards, from ``serve.run`` to the second picture."""
    config = read_serve_file("configs/quickstart.yaml").config
    config = config.model_copy(update={"cards": config.cards.model_copy(update={"gpu": "never"})})
    began = time.perf_counter()
    serve.run(build_app(config), name="tenure", route_prefix="/")
    wait_for("/ready", lambda: client.get("/ready").status_code == 200)
    marks = [time.perf_counter() - began]
    for _ in range(2):
        before = time.perf_counter()
        client.post(PATH, json=BODY).raise_for_status()
        marks.append(time.perf_counter() - before)
    serve.delete("tenure")
    return "quickstart: ready after {:.1f} s, first picture {:.2f} s, second {:.2f} s".format(
        *marks
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(usage="python -m scripts.driver_cost")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--quickstart", action="store_true")
    options = parser.parse_args()
    with local_serve() as client:
        rows = []
        for name, app in (("plain Ray Serve", plain_app()), ("Tenure", tenure_app())):
            serve.run(app, name="tenure", route_prefix="/")
            rows.append(measure(client, name, options.requests))
            serve.delete("tenure")
        print(format_table(HEADER, rows))
        if options.quickstart:
            print(start_up(client))
    return 0


if __name__ == "__main__":
    sys.exit(main())
