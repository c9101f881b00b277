"""What the server says of itself: health, readiness, the fleet as JSON and as a page, metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from deployments.backend import ImageBackend
from deployments.fleet import Totals
from deployments.messages import ReplicaState
from deployments.rank import ABLE
from deployments.version import version

PAGE = Path(__file__).parent / "dashboard" / "index.html"
LATENCY_KEYS = ("count", "p50_s", "p95_s")


def status_routes(backend: ImageBackend) -> APIRouter:
    """Open to everyone: probes and scrapers carry no key."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": version()}

    @routes.get("/ready", responses={503: {"description": "No replica can draw yet"}})
    async def ready() -> JSONResponse:
        now = backend.readiness()
        body = {"state": now.state, "detail": now.detail}
        return JSONResponse(body, 200 if now.ready else 503)

    @routes.get("/fleet")
    async def fleet() -> dict[str, Any]:
        return fleet_json(backend.states(), backend.totals())

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(backend.metrics_text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE, media_type="text/html")

    return routes


def fleet_json(states: Sequence[ReplicaState], totals: Totals) -> dict[str, Any]:
    """The body of /fleet."""
    return {
        "version": version(),
        "replicas": [replica_json(state) for state in states],
        "totals": {
            "replicas": len(states),
            "ready": sum(state.state in ABLE for state in states),
            "queue": sum(state.queue for state in states),
            "memory_bytes": sum(state.card.memory_bytes for state in states),
            "latency": _shown(totals.latency.to_dict()),
            "waiting": totals.waiting,
            "requests": dict(totals.requests),
            "moved": totals.moved,
            **totals.counts,
        },
    }


def replica_json(state: ReplicaState) -> dict[str, Any]:
    """One replica, with the quantiles of its latency but without the buckets."""
    return {**state.to_dict(), "latency": _shown(state.latency)}


def _shown(latency: Any) -> dict[str, Any]:
    return {key: latency.get(key, 0) for key in LATENCY_KEYS}
