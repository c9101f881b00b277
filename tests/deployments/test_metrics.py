"""Prometheus text of the fleet: what /fleet says, as families that a scraper reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.fleet import Totals
from deployments.latency import Latency, merged
from deployments.messages import State
from deployments.metrics import Exposition
from tests.deployments.fake_backend import state_of


def component(name: str, permanent: int, forward: int, streamed: int):
    return {
        "name": name,
        "permanent_bytes": permanent,
        "forward_bytes": forward,
        "streamed_bytes": streamed,
    }


ONE = state_of(
    "one",
    components=(component("vae", 5, 0, 0), component("transformer", 1, 2, 3)),
    latency=Latency().with_one(0.5).with_one(2.0).to_dict(),
    memory={
        "card": {"allocated_bytes": 6, "reserved_bytes": 8, "peak_bytes": 7},
        "host": {"store_bytes": 5},
    },
    served=2,
    failed=1,
    retried=4,
)
TWO = state_of("two", state=State.BUSY, latency=Latency().with_one(4.0).to_dict(), served=1)
STARTING = state_of("three", state=State.STARTING)
FLEET = (ONE, TWO, STARTING)


def totals_of(states) -> Totals:
    total = Totals()
    for state in states:
        total = total.plus(state)
    return total


@pytest.fixture
def exposition():
    return Exposition(lambda: FLEET, lambda: totals_of(FLEET))


def samples(exposition) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(exposition.text())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(exposition, name: str, **labels) -> float:
    return samples(exposition)[name, tuple(sorted(labels.items()))]


@pytest.mark.parametrize(
    ("lifetime", "num_bytes"), [("permanent", 1), ("forward", 2), ("streamed", 3)]
)
def test_memory_is_told_by_component_and_lifetime(exposition, lifetime, num_bytes):
    labels = {"replica": "one", "component": "transformer", "lifetime": lifetime}
    assert value(exposition, "tenure_memory_bytes", **labels) == num_bytes


def test_a_card_is_told_as_it_is_and_a_starting_one_as_far_as_it_is_known(exposition):
    kinds = {"total": 1000, "free_at_start": 900, "allocated": 6, "reserved": 8, "peak": 7}
    for kind, num_bytes in kinds.items():
        labels = {"replica": "one", "card": "mini", "kind": kind}
        assert value(exposition, "tenure_card_memory_bytes", **labels) == num_bytes
    labels = (("card", "mini"), ("kind", "peak"), ("replica", "three"))
    assert ("tenure_card_memory_bytes", labels) not in samples(exposition)
    assert value(exposition, "tenure_host_store_bytes", replica="one") == 5


def test_latency_is_told_per_replica_and_in_total(exposition):
    assert value(exposition, "tenure_job_seconds_count", replica="one") == 2
    assert value(exposition, "tenure_job_seconds_sum", replica="one") == pytest.approx(2.5)
    assert value(exposition, "tenure_fleet_job_seconds_count") == 3
    assert value(exposition, "tenure_fleet_job_seconds_sum") == pytest.approx(6.5)
    parts = [Latency.from_dict(state.latency) for state in (ONE, TWO)]
    assert merged(parts).count == 3


def test_buckets_are_cumulative_and_end_at_the_count(exposition):
    buckets = [
        number
        for (name, _), number in samples(exposition).items()
        if name == "tenure_fleet_job_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3


def test_jobs_and_replicas_are_counted(exposition):
    assert value(exposition, "tenure_jobs_total", outcome="served") == 3
    assert value(exposition, "tenure_jobs_total", outcome="failed") == 1
    assert value(exposition, "tenure_jobs_retried_total") == 4
    for state in ("ready", "busy", "starting"):
        assert value(exposition, "tenure_replicas", state=state) == 1


def test_a_request_is_timed_with_its_outcome(exposition):
    exposition.request_s.labels("served").observe(0.3)
    assert value(exposition, "tenure_request_seconds_count", outcome="served") == 1


def test_two_drivers_in_one_process_do_not_collide():
    for _ in range(2):
        assert "tenure_replicas" in Exposition(lambda: FLEET, Totals).text()
