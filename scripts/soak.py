"""Many requests, right, wrong and stopped, while replicas are killed: each one ends, and once.

    python -m scripts.soak --requests 500 --kills 5

Serves the quickstart on simulated cards of this machine. Every request has one end that it must
come to; the driver's counts must be the clients' own; afterwards each card holds its permanent set
and nothing else, each replica takes no more memory than before, and a seed draws the same picture.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import httpx
from ray import serve

from deployments.app import build_app
from deployments.errors import OUTCOMES
from deployments.serve_file import read_serve_file
from scripts.local_serve import local_serve
from scripts.soak_clients import LONG, Clients, Ended
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
    """Against a server on this machine, whose cluster this process is part of."""
    began_s = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        run = Soak(http, random.Random(seed))
        then = await run.fleet.totals()
        drawn, before = await run.settle()
        *killing, quiet = shares(num_requests, kills)
        for numbers in killing:
            await run.round(numbers, run.kill)
        _, between = await run.settle()
        await run.round(quiet, run.wait)
        again, after = await run.settle()
        now = await run.fleet.totals()
    requests, once = now["requests"], then["requests"]
    return Soaked(
        ended=tuple(run.ended),
        counted={outcome: requests[outcome] - once[outcome] for outcome in OUTCOMES},
        before=before,
        between=between,
        after=after,
        killed=tuple(run.killed),
        retried=now["retried"] - then["retried"],
        same_pictures=drawn == again,
        seconds=time.monotonic() - began_s,
    )


def shares(num_requests: int, kills: int) -> list[range]:
    """The requests of each round that kills a replica, and last the half that kills none."""
    ends = [num_requests // 2 * part // kills for part in range(kills + 1)]
    return [*(range(*pair) for pair in pairwise(ends)), range(ends[-1], num_requests)]


class Soak:
    """The steps of one soak, and what has ended so far."""

    def __init__(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        self.fleet = ServedFleet(http)
        self.ended: list[Ended] = []
        self.killed: list[str] = []
        self._http = http
        self._clients = Clients(http)
        self._rng = rng

    async def round(self, numbers: range, act: Callable[[], Awaitable[None]]) -> None:
        """These requests, a few at a time; ``act`` happens once a third of them has ended."""
        places = asyncio.Semaphore(CLIENTS)
        third = asyncio.Event()
        until = len(self.ended) + len(numbers) / 3

        async def one(number: int, rng: random.Random) -> None:
            async with places:
                self.ended.append(await self._clients.one(f"soak-{number}", rng))
            if len(self.ended) >= until:
                third.set()

        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(one(number, random.Random(self._rng.random())))
            await third.wait()
            await act()

    async def kill(self) -> None:
        self.killed.append(await self.fleet.kill_one())

    async def wait(self) -> None:
        """Nothing happens in a quiet round."""

    async def settle(self) -> tuple[dict[str, Any], dict[str, Resting]]:
        """By card: the picture of one seed, and what its replica holds once it has drawn a few."""
        pictures = {}
        for replica in await self.fleet.at_rest(CARDS, gone=self.killed):
            for body in WARM_UPS:
                ended, answer = await self._clients.pinned(replica["id"], body)
                self.ended.append(ended)
            pictures[replica["card"]["name"]] = answer.json()["data"]
        rested = await self.fleet.at_rest(CARDS)
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
