"""Every metric: names, labels, buckets, and the Prometheus text of the driver.

Fleet figures are read from the registry at each scrape, so that they are those of ``/fleet``.
Labels never carry a prompt or a request id.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from deployments.fleet import Totals
from deployments.latency import BOUNDS_S, Latency
from deployments.messages import ReplicaState

MEMORY = "tenure_memory_bytes"  # weights by component and lifetime
CARD_MEMORY = "tenure_card_memory_bytes"  # by kind: total, free at start, allocated, reserved, peak
HOST_STORE = "tenure_host_store_bytes"
JOB_S = "tenure_job_seconds"  # on the card, by replica
FLEET_JOB_S = "tenure_fleet_job_seconds"  # the same, of all replicas that are and were
REQUEST_S = "tenure_request_seconds"  # as the client waits: with the queue
JOBS = "tenure_jobs"  # that ended, by outcome
RETRIED = "tenure_jobs_retried"  # sent again because a replica died under them
OUTCOMES = ("served", "failed", "cancelled")
REPLICAS = "tenure_replicas"  # by state
LIFETIMES = ("permanent", "forward", "streamed")
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)

States = Callable[[], Sequence[ReplicaState]]


class Exposition:
    """The driver's metrics, in a registry of their own."""

    def __init__(self, states: States, totals: Callable[[], Totals]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(FleetCollector(states, totals))
        self.request_s = Histogram(
            REQUEST_S,
            "Seconds from a request's arrival to its answer",
            ["outcome"],
            registry=self._registry,
            buckets=REQUEST_BUCKETS_S,
        )

    def text(self) -> str:
        return generate_latest(self._registry).decode()


class FleetCollector(Collector):
    """Turns the registry of replicas into metric families, at each scrape."""

    def __init__(self, states: States, totals: Callable[[], Totals]) -> None:
        self._states = states
        self._totals = totals

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the replicas are not known before they run."""
        return []

    def collect(self) -> Iterator[Metric]:
        states = self._states()
        yield memory_family(states)
        yield card_family(states)
        yield host_family(states)
        yield replicas_family(states)
        yield job_family(states)
        totals = self._totals()
        fleet_family = HistogramMetricFamily(FLEET_JOB_S, "Seconds of a job, over all replicas")
        fleet_family.add_metric([], *_histogram(totals.latency))
        yield fleet_family
        jobs = CounterMetricFamily(JOBS, "Jobs that ended, by outcome", labels=["outcome"])
        for outcome in OUTCOMES:
            jobs.add_metric([outcome], totals.counts[outcome])
        yield jobs
        retried = "Jobs sent again because a replica died under them"
        yield CounterMetricFamily(RETRIED, retried, value=totals.counts["retried"])


def memory_family(states: Sequence[ReplicaState]) -> Metric:
    family = GaugeMetricFamily(
        MEMORY, "Bytes of weights by lifetime", labels=["replica", "component", "lifetime"]
    )
    for state in states:
        for component in state.components:
            for lifetime in LIFETIMES:
                labels = [state.id, component["name"], lifetime]
                family.add_metric(labels, component[f"{lifetime}_bytes"])
    return family


def card_family(states: Sequence[ReplicaState]) -> Metric:
    family = GaugeMetricFamily(CARD_MEMORY, "Bytes of a card", labels=["replica", "card", "kind"])
    for state in states:
        now = state.memory.get("card", {})
        kinds = {"total": state.card.memory_bytes, "free_at_start": state.card.free_bytes}
        kinds |= {kind: now.get(f"{kind}_bytes") for kind in ("allocated", "reserved", "peak")}
        for kind, num_bytes in kinds.items():
            if num_bytes is not None:
                family.add_metric([state.id, state.card.name, kind], num_bytes)
    return family


def host_family(states: Sequence[ReplicaState]) -> Metric:
    family = GaugeMetricFamily(HOST_STORE, "Bytes of host copies", labels=["replica"])
    for state in states:
        if "host" in state.memory:
            family.add_metric([state.id], state.memory["host"]["store_bytes"])
    return family


def replicas_family(states: Sequence[ReplicaState]) -> Metric:
    family = GaugeMetricFamily(REPLICAS, "Replicas by state", labels=["state"])
    for name in sorted({state.state for state in states}):
        family.add_metric([name.value], sum(state.state is name for state in states))
    return family


def job_family(states: Sequence[ReplicaState]) -> Metric:
    family = HistogramMetricFamily(JOB_S, "Seconds of a job on its card", labels=["replica"])
    for state in states:
        family.add_metric([state.id], *_histogram(Latency.from_dict(state.latency)))
    return family


def _histogram(latency: Latency) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets, as Prometheus wants them, and the sum."""
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    buckets, below = [], 0
    for bound, count in zip(bounds, latency.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets, latency.sum_s
