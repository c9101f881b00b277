"""A replica's figures through Ray's own metrics: Ray adds deployment, replica and application."""

from ray.serve import metrics

from deployments.messages import ReplicaState
from deployments.metrics import (
    ASKED_OF_THE_DRIVER,
    GAUGE,
    JOB_S,
    OF_REPLICAS,
    REQUEST_BUCKETS_S,
)


class ReplicaMetrics:
    """Gauges vanish when they are not set again for 20 s: ``refresh`` is called on each poll."""

    def __init__(self) -> None:
        self._metrics = [
            (
                (metrics.Gauge if kind is GAUGE else metrics.Counter)(
                    name, words, tag_keys=("card", *labels)
                ),
                labels,
                numbers,
            )
            for kind, name, words, labels, numbers in OF_REPLICAS
            if name not in ASKED_OF_THE_DRIVER
        ]
        self._told: dict[tuple[object, ...], float] = {}  # counter and labels -> its sum
        self._job_s = metrics.Histogram(
            JOB_S,
            "Seconds of a served job",
            boundaries=list(REQUEST_BUCKETS_S),
            tag_keys=("card",),
        )

    def refresh(self, state: ReplicaState) -> None:
        """Set what is, and add what came since the last time."""
        for metric, labels, numbers in self._metrics:
            for values, number in numbers(state):
                tags = dict(zip(("card", *labels), (state.card.name, *values), strict=True))
                if isinstance(metric, metrics.Gauge):
                    metric.set(number, tags=tags)
                else:
                    self._add(metric, tags, number)

    def _add(self, counter: metrics.Counter, tags: dict[str, str], total: float) -> None:
        """Ray's counters take what is added, and refuse nothing."""
        key = (id(counter), *tags.values())
        more = total - self._told.get(key, 0)
        if more > 0:
            counter.inc(more, tags=tags)
            self._told[key] = total

    def job_served(self, card: str, seconds: float) -> None:
        self._job_s.observe(seconds, tags={"card": card})
