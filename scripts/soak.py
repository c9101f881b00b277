"""Many requests, right, wrong and stopped, while replicas are killed: each one ends, and once.

    python -m scripts.soak --requests 500 --kills 5

Serves the quickstart on simulated cards of this machine. Every request has one end that it must come
to; the driver's counts must be the clients' own; afterwards each card holds its permanent set and
nothing else, each replica takes no more memory than before, and a seed draws the same picture.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
from ray import serve

from deployments.app import build_app
from deployments.errors import OUTCOMES
from deployments.serve_file import read_serve_file
from scripts.local_serve import local_serve
from scripts.soak_clients import IMAGES, LONG, Clients, Ended
from scripts.soak_fleet import Resting, ServedFleet, resting
from scripts.soaked import Soaked

CARDS = 2  # of the quickstart
CLIENTS = 6  # requests on their way at once
TIMEOUT_S = 240.0
SAME = {"prompt": "a red circle", "seed": 7, "num_inference_steps": 4}
# What each replica draws before its memory is looked at: the largest shape, and every kind.
WARM_UPS = (
    {**LONG, "num_inference_steps": 2},
    *({**SAME, "size": size, "n": 2} for size in ("128x128", "96x128", "64x64")),
    {**SAME, "stream": True, "partial_images": 2},
    SAME,
)


async def soak(url: str, *, num_requests: int, kills: int, seed: int = 1) -> Soaked:
    """Against a server whose replicas run on this machine, on the cluster that this process is in."""
    began_s = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        fleet, rng = ServedFleet(http), random.Random(seed)
        drawn, before = await settled(http, fleet, await fleet.at_rest(CARDS))
        then = await fleet.totals()
        ended: list[Ended] = []
        killed: list[str] = []
        for numbers in shares(num_requests, kills):
            ids = [f"soak-{seed}-{number}" for number in numbers]
            ended += await one_round(Clients(http), fleet, ids, rng, killed)
            replicas = await fleet.at_rest(CARDS, gone=killed)
        now = await fleet.totals()
        again, after = await settled(http, fleet, replicas)
    requests, once = now["requests"], then["requests"]
    return Soaked(
        ended=tuple(ended),
        counted={outcome: requests[outcome] - once[outcome] for outcome in OUTCOMES},
        before=before,
        after=after,
        killed=tuple(killed),
        retried=now["retried"] - then["retried"],
        same_pictures=drawn == again,
        seconds=time.monotonic() - began_s,
    )


def shares(num_requests: int, kills: int) -> list[range]:
    """The requests of each round: as many rounds as replicas are killed."""
    ends = [num_requests * part // kills for part in range(kills + 1)]
    return [range(*pair) for pair in zip(ends, ends[1:], strict=False)]


async def one_round(
    clients: Clients, fleet: ServedFleet, ids: Sequence[str], rng: random.Random, killed: list[str]
) -> list[Ended]:
    """Every request of it, and one replica killed once a third of them has ended."""
    places = asyncio.Semaphore(CLIENTS)
    ended: list[Ended] = []
    third = asyncio.Event()

    async def one(request_id: str, own: random.Random) -> None:
        async with places:
            ended.append(await clients.one(request_id, own))
        if 3 * len(ended) >= len(ids):
            third.set()

    async def kill() -> None:
        await third.wait()
        killed.append(await fleet.kill_one())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        for request_id in ids:
            tasks.create_task(one(request_id, random.Random(rng.random())))
    return ended


async def settled(
    http: httpx.AsyncClient, fleet: ServedFleet, replicas: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Resting]]:
    """By card: the picture of one seed, and what its replica holds once it has drawn a few."""
    pictures = {}
    for replica in replicas:
        headers = {"X-Tenure-Replica": replica["id"]}
        for body in WARM_UPS:
            answer = await http.post(IMAGES, json=body, headers=headers)
            answer.raise_for_status()
        pictures[replica["card"]["name"]] = answer.json()["data"]
    rested = await fleet.at_rest(CARDS)
    return pictures, await asyncio.to_thread(resting, rested)


def main() -> int:
    """Print what became of them; 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser(usage="python -m scripts.soak")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = read_serve_file("configs/quickstart.yaml").config
    config = config.model_copy(update={"cards": config.cards.model_copy(update={"gpu": "never"})})
    with local_serve() as client:
        serve.run(build_app(config), name="tenure", route_prefix="/")
        found = asyncio.run(
            soak(
                str(client.base_url),
                num_requests=options.requests,
                kills=options.kills,
                seed=options.seed,
            )
        )
    print(found.table())
    for fault in found.faults:
        print(f"FAULT: {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
