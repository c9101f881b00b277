"""A replica's figures through Ray: sums become what was added, and every sample fits its labels."""

import pytest

from deployments import samples
from deployments.metrics import ASKED_OF_THE_DRIVER, GAUGE, JOB_S, OF_REPLICAS, QUEUE
from deployments.serve_metrics import ReplicaMetrics
from tests.deployments.fake_backend import state_of
from tests.deployments.test_metrics import ONE


class FakeCounter:
    """Remembers what was added."""

    def __init__(self) -> None:
        self.added: list[tuple[float, dict[str, str]]] = []

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0  # Ray raises
        self.added.append((value, tags))


def test_a_counter_is_told_what_came_since_the_last_time():
    counter, told = FakeCounter(), ReplicaMetrics()
    told._metrics = [(counter, ("event",), samples.events)]
    for served in (0, 2, 2, 5):
        told.refresh(state_of("one", served=served))
    assert counter.added == [(n, {"card": "mini", "event": "served"}) for n in (2, 3)]


def test_counters_of_different_components_are_kept_apart():
    counter, told = FakeCounter(), ReplicaMetrics()
    told._metrics = [(counter, ("component",), samples.moved("copied_bytes"))]
    for copied in (1, 4):
        told.refresh(state_of("one", moved={n: {"copied_bytes": copied} for n in ("a", "b")}))
    tags = [{"card": "mini", "component": name} for name in ("a", "b")]
    assert counter.added == [(1, tags[0]), (1, tags[1]), (3, tags[0]), (3, tags[1])]


def test_ray_is_told_all_that_the_driver_is_but_for_what_a_replica_does_not_know():
    told = {metric.info["name"] for metric, _, _ in ReplicaMetrics()._metrics}
    assert told == {name for _, name, *_ in OF_REPLICAS} - {QUEUE}
    assert ASKED_OF_THE_DRIVER == (QUEUE,)
    assert JOB_S not in told  # a histogram: each job is told as it ends


@pytest.mark.parametrize("entry", OF_REPLICAS, ids=lambda entry: entry[1])
def test_every_sample_has_a_value_for_each_label(entry):
    kind, _, _, labels, numbers = entry
    told = list(numbers(ONE))
    assert told
    assert all(len(values) == len(labels) for values, _ in told)
    assert all(isinstance(number, int | float) for _, number in told)
    ReplicaMetrics().refresh(ONE)  # Ray checks names and tags
    assert kind is GAUGE or all(number >= 0 for _, number in told)
