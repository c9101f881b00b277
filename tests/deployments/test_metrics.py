"""Prometheus text of the fleet: what /fleet says, as families that a scraper reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.errors import OUTCOMES
from deployments.fleet import Totals
from deployments.latency import Latency, merged
from deployments.messages import State
from deployments.metrics import OF_REPLICAS, Exposition
from tests.deployments.fake_backend import state_of


def component(name: str, permanent: int, forward: int, streamed: int):
    return {
        "name": name,
        "permanent_bytes": permanent,
        "forward_bytes": forward,
        "streamed_bytes": streamed,
        "lifetime": "mixed",
        "policy": "spread",
        "resident_layers": 3,
        "layers": 4,
        "wish": "0.8, auto",
    }


MOVED = {
    "copied_bytes": 90,
    "wasted_bytes": 9,
    "stall_s": 1.5,
    "arming_s": 2.5,
    "prefetched": 8,
    "on_the_spot": 1,
}
ONE = state_of(
    "one",
    components=(component("vae", 5, 0, 0), component("transformer", 1, 2, 3)),
    latency=Latency().with_one(0.5).with_one(2.0).to_dict(),
    memory={
        "card": {"allocated_bytes": 6, "reserved_bytes": 8, "peak_bytes": 7},
        "host": {"store_bytes": 5, "pinned_bytes": 4},
    },
    stages={"load": 2.5},
    moved={"transformer": MOVED},
    predicted_s=1.25,
    queue=2,
    served=2,
    failed=1,
    refused=3,
    retried=4,
    out_of_memory=1,
)
TWO = state_of("two", state=State.BUSY, latency=Latency().with_one(4.0).to_dict(), served=1)
STARTING = state_of("three", state=State.STARTING)
FLEET = (ONE, TWO, STARTING)
OF_ONE = {"replica": "one", "card": "mini"}


def totals_of(states) -> Totals:
    total = Totals(waiting=5, requests={**dict.fromkeys(OUTCOMES, 0), "refused": 6})
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
    labels = {"component": "transformer", "lifetime": lifetime}
    assert value(exposition, "tenure_memory_bytes", **OF_ONE, **labels) == num_bytes


def test_the_plan_in_force_is_told_with_its_wish(exposition):
    labels = {"lifetime": "mixed", "policy": "spread", "resident": "3/4", "wish": "0.8, auto"}
    assert value(exposition, "tenure_plan_info", **OF_ONE, component="vae", **labels) == 1
    assert value(exposition, "tenure_predicted_seconds", **OF_ONE) == 1.25


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("tenure_copied_bytes_total", 90),
        ("tenure_wasted_bytes_total", 9),
        ("tenure_stall_seconds_total", 1.5),
        ("tenure_arming_seconds_total", 2.5),
    ],
)
def test_what_was_moved_is_told_by_component(exposition, name, number):
    assert value(exposition, name, **OF_ONE, component="transformer") == number


def test_prefetch_is_told_in_hits_and_misses(exposition):
    labels = {**OF_ONE, "component": "transformer"}
    assert value(exposition, "tenure_prefetch_total", **labels, result="hit") == 8
    assert value(exposition, "tenure_prefetch_total", **labels, result="miss") == 1


def test_where_time_and_requests_are_is_told(exposition):
    assert value(exposition, "tenure_start_stage_seconds", **OF_ONE, stage="load") == 2.5
    assert value(exposition, "tenure_queue", **OF_ONE) == 2
    assert value(exposition, "tenure_waiting_requests") == 5


def test_a_card_is_told_as_it_is_and_a_starting_one_as_far_as_it_is_known(exposition):
    kinds = {"total": 1000, "free_at_start": 900, "allocated": 6, "reserved": 8, "peak": 7}
    for kind, num_bytes in kinds.items():
        assert value(exposition, "tenure_card_memory_bytes", **OF_ONE, kind=kind) == num_bytes
    labels = (("card", "mini"), ("kind", "peak"), ("replica", "three"))
    assert ("tenure_card_memory_bytes", labels) not in samples(exposition)
    assert value(exposition, "tenure_host_store_bytes", **OF_ONE) == 5
    assert value(exposition, "tenure_host_pinned_bytes", **OF_ONE) == 4


def test_latency_is_told_per_replica_and_in_total(exposition):
    assert value(exposition, "tenure_job_seconds_count", **OF_ONE) == 2
    assert value(exposition, "tenure_job_seconds_sum", **OF_ONE) == pytest.approx(2.5)
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
    assert value(exposition, "tenure_jobs_total", outcome="refused") == 3
    assert value(exposition, "tenure_jobs_retried_total") == 4
    assert value(exposition, "tenure_out_of_memory_total") == 1
    for event, number in {"served": 2, "refused": 3, "retried": 4, "out_of_memory": 1}.items():
        assert value(exposition, "tenure_replica_jobs_total", **OF_ONE, event=event) == number
    for state in ("ready", "busy", "starting"):
        assert value(exposition, "tenure_replicas", state=state) == 1


def test_a_request_is_timed_with_its_outcome(exposition):
    exposition.request_ended("served", 0.3)
    assert value(exposition, "tenure_requests_total", outcome="refused") == 6
    assert value(exposition, "tenure_request_seconds_count", outcome="served") == 1


def test_two_drivers_in_one_process_do_not_collide():
    for _ in range(2):
        assert "tenure_replicas" in Exposition(lambda: FLEET, Totals).text()


def test_whatever_is_told_of_a_replica_names_its_card(exposition):
    told = [dict(labels) for (_, labels) in samples(exposition) if "replica" in dict(labels)]
    assert len(told) > len(OF_REPLICAS)
    assert {labels["card"] for labels in told} == {"mini"}
