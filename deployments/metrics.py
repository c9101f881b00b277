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

from deployments import samples
from deployments.errors import OUTCOMES
from deployments.fleet import Totals
from deployments.latency import Latency
from deployments.messages import ReplicaState

# --- of each replica: labels replica and card, and those named here -------------------------------
MEMORY = "tenure_memory_bytes"  # component, lifetime
PLAN = "tenure_plan_info"  # component, lifetime, policy, resident, wish; always 1
CARD_MEMORY = "tenure_card_memory_bytes"  # kind: total, free_at_start, allocated, reserved, peak
HOST_STORE = "tenure_host_store_bytes"
HOST_PINNED = "tenure_host_pinned_bytes"
START_STAGE_S = "tenure_start_stage_seconds"  # stage
PREDICTED_S = "tenure_predicted_seconds"  # of a usual request, by the plan in force
QUEUE = "tenure_queue"  # jobs that run there or are expected to go there
JOB_S = "tenure_job_seconds"  # histogram
REPLICA_JOBS = "tenure_replica_jobs"  # event
COPIED = "tenure_copied_bytes"  # component; this and the next four are of served jobs
WASTED = "tenure_wasted_bytes"
STALL_S = "tenure_stall_seconds"
ARMING_S = "tenure_arming_seconds"
PREFETCH = "tenure_prefetch"  # component, result: hit, miss
# --- of the fleet ---------------------------------------------------------------------------------
REPLICAS = "tenure_replicas"  # state
WAITING = "tenure_waiting_requests"
FLEET_JOB_S = "tenure_fleet_job_seconds"  # of all replicas that are and were
JOBS = "tenure_jobs"  # outcome
RETRIED = "tenure_jobs_retried"
OUT_OF_MEMORY = "tenure_out_of_memory"
REQUESTS = "tenure_requests"  # outcome: how each request that came ended
REQUEST_S = "tenure_request_seconds"  # outcome; as the client waits: with the queue

REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
MOVED = {  # metric -> (key of ReplicaState.moved, words)
    COPIED: ("copied_bytes", "Bytes copied to the card"),
    WASTED: ("wasted_bytes", "Bytes copied and not used"),
    STALL_S: ("stall_s", "Seconds that the computation waited for a copy"),
    ARMING_S: ("arming_s", "Seconds that the link was busy"),
}

States = Callable[[], Sequence[ReplicaState]]
Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily
RESULT = ("component", "result")  # labels of PREFETCH


class Exposition:
    """The driver's metrics, in a registry of their own."""

    def __init__(self, states: States, totals: Callable[[], Totals]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(FleetCollector(states, totals))
        self._request_s = Histogram(
            REQUEST_S,
            "Seconds from a request's arrival to its answer",
            ["outcome"],
            registry=self._registry,
            buckets=REQUEST_BUCKETS_S,
        )

    def request_ended(self, outcome: str, seconds: float) -> None:
        self._request_s.labels(outcome).observe(seconds)

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
        yield from replica_families(states)
        yield from fleet_families(states, self._totals())


ASKED_OF_THE_DRIVER = (QUEUE,)  # what a replica does not know of itself
# Kind, name, words, labels beside replica and card, and what gives the numbers.
OF_REPLICAS: tuple[
    tuple[Family, str, str, tuple[str, ...], Callable[[ReplicaState], samples.Samples]], ...
] = (
    (GAUGE, MEMORY, "Bytes of weights by lifetime", ("component", "lifetime"), samples.memory),
    (GAUGE, PLAN, "The plan in force", samples.PLAN_LABELS, samples.plan),
    (GAUGE, CARD_MEMORY, "Bytes of a card", ("kind",), samples.card),
    (GAUGE, HOST_STORE, "Bytes of host copies", (), samples.host("store_bytes")),
    (GAUGE, HOST_PINNED, "Of those, page-locked", (), samples.host("pinned_bytes")),
    (GAUGE, START_STAGE_S, "Seconds of a start-up stage", ("stage",), samples.stages),
    (GAUGE, PREDICTED_S, "Seconds of a usual request, as planned", (), samples.predicted),
    (GAUGE, QUEUE, "Jobs that run there or are expected to", (), samples.queue),
    (COUNTER, REPLICA_JOBS, "What became of jobs", ("event",), samples.events),
    (COUNTER, PREFETCH, "Units by whether they were on their way", RESULT, samples.prefetch),
    *(
        (COUNTER, name, words, ("component",), samples.moved(key))
        for name, (key, words) in MOVED.items()
    ),
)


def replica_families(states: Sequence[ReplicaState]) -> Iterator[Metric]:
    """Everything that carries the labels replica and card."""
    for kind, name, words, labels, numbers in OF_REPLICAS:
        family = kind(name, words, labels=("replica", "card", *labels))
        for state in states:
            for values, number in numbers(state):
                family.add_metric((state.id, state.card.name, *values), number)
        yield family
    jobs_s = HistogramMetricFamily(JOB_S, "Seconds of a served job", labels=("replica", "card"))
    for state in states:
        latency = Latency.from_dict(state.latency)
        jobs_s.add_metric((state.id, state.card.name), *samples.histogram(latency))
    yield jobs_s


def fleet_families(states: Sequence[ReplicaState], totals: Totals) -> Iterator[Metric]:
    """What is told of all replicas together, gone ones included."""
    replicas = GaugeMetricFamily(REPLICAS, "Replicas by state", labels=("state",))
    for one in sorted({state.state for state in states}):
        replicas.add_metric((one.value,), sum(state.state is one for state in states))
    yield replicas
    yield GaugeMetricFamily(WAITING, "Requests that wait for a replica", value=totals.waiting)
    jobs_s = HistogramMetricFamily(FLEET_JOB_S, "Seconds of a served job, over all replicas")
    jobs_s.add_metric((), *samples.histogram(totals.latency))
    yield jobs_s
    for name, words, counts in (
        (JOBS, "Jobs that ended, by outcome", totals.counts),
        (REQUESTS, "Requests that ended, by outcome", totals.requests),
    ):
        family = CounterMetricFamily(name, words, labels=("outcome",))
        for outcome in OUTCOMES:
            family.add_metric((outcome,), counts[outcome])
        yield family
    again = "Jobs drawn again, on another replica"
    yield CounterMetricFamily(RETRIED, again, value=totals.counts["retried"])
    short = "Times that a card ran out of memory in a job"
    yield CounterMetricFamily(OUT_OF_MEMORY, short, value=totals.counts["out_of_memory"])
