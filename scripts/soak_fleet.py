"""The server's side of the soak: its counts, its cards' ledgers, its processes and their memory.

Reads /fleet and /proc, and ends replicas by their process ids; knows nothing of requests.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ray

APP = "tenure"
DEADLINE_S = 180.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """One replica that draws nothing."""

    id: str
    allocated_bytes: int  # on its card, by its own ledger
    own_bytes: int  # of it: its components', which is their permanent units and their buffers
    rss_bytes: int


class ServedFleet:
    """Asks a running server and its processes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self) -> dict[str, Any]:
        answer = await self._http.get("/fleet")
        read: dict[str, Any] = answer.raise_for_status().json()
        return read

    async def totals(self) -> dict[str, Any]:
        totals: dict[str, Any] = (await self.ask())["totals"]
        return totals

    async def kill_one(self) -> str:
        """End the process of a replica, of one that draws where there is one; returns its id."""
        replicas = (await self.ask())["replicas"]
        replicas.sort(key=lambda replica: replica["state"] != "busy")
        victim: str = replicas[0]["id"]
        os.kill(await asyncio.to_thread(pid_of, victim), signal.SIGKILL)
        return victim

    async def at_rest(self, num_replicas: int, gone: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The replicas, once so many are ready, nobody waits, and the dead ones are ``gone``."""
        deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            fleet = await self.ask()
            replicas: list[dict[str, Any]] = fleet["replicas"]
            rests = all(one["state"] == "ready" and not one["queue"] for one in replicas)
            left = {one["id"] for one in replicas}.isdisjoint(gone)
            if rests and left and len(replicas) == num_replicas and not fleet["totals"]["waiting"]:
                return replicas
            if asyncio.get_running_loop().time() > deadline_s:
                seen = [(one["id"], one["state"], one["detail"]) for one in replicas]
                raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {num_replicas}; seen: {seen}")
            await asyncio.sleep(0.2)


def resting(replicas: list[dict[str, Any]]) -> dict[str, Resting]:
    """Card name -> what its replica holds between requests."""
    return {
        one["card"]["name"]: Resting(
            id=one["id"],
            allocated_bytes=one["memory"]["card"]["allocated_bytes"],
            own_bytes=sum(part["on_card_bytes"] for part in one["components"]),
            rss_bytes=rss_bytes(pid_of(one["id"])),
        )
        for one in replicas
    }


def pid_of(replica_id: str) -> int:
    """The process of a replica, asked of itself."""
    name = f"SERVE_REPLICA::{APP}#DiffusionReplica#{replica_id}"
    actor: Any = ray.get_actor(name, namespace="serve")
    pid: int = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
    return pid


def rss_bytes(pid: int) -> int:
    """Resident memory of a process on this machine."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
