"""A replica's figures through Ray's own metrics: Ray adds deployment, replica and application."""

from ray.serve import metrics

from deployments.messages import ReplicaState
from deployments.metrics import (
    HOST_STORE,
    JOB_S,
    JOBS,
    LIFETIMES,
    MEMORY,
    REQUEST_BUCKETS_S,
    RETRIED,
)


class ReplicaMetrics:
    """Gauges vanish when they are not set again for 20 s: ``refresh`` is called on each poll."""

    def __init__(self) -> None:
        self._memory = metrics.Gauge(
            MEMORY, "Bytes of weights by lifetime", tag_keys=("component", "lifetime")
        )
        self._host = metrics.Gauge(HOST_STORE, "Bytes of host copies")
        self._jobs = metrics.Counter(JOBS, "Jobs that ended, by outcome", tag_keys=("outcome",))
        self._retried = metrics.Counter(RETRIED, "Jobs that another replica died under")
        self._job_s = metrics.Histogram(
            JOB_S,
            "Seconds of a job on its card",
            boundaries=list(REQUEST_BUCKETS_S),
            tag_keys=("outcome",),
        )

    def refresh(self, state: ReplicaState) -> None:
        for component in state.components:
            for lifetime in LIFETIMES:
                tags = {"component": component["name"], "lifetime": lifetime}
                self._memory.set(component[f"{lifetime}_bytes"], tags=tags)
        if "host" in state.memory:
            self._host.set(state.memory["host"]["store_bytes"])

    def job_retried(self) -> None:
        self._retried.inc()

    def job_ended(self, outcome: str, seconds: float) -> None:
        self._jobs.inc(tags={"outcome": outcome})
        self._job_s.observe(seconds, tags={"outcome": outcome})
