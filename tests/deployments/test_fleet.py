"""The registry: those that run, those that start, those that are gone, and who owns which card."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from deployments.fleet import START_REPORT_LIFE_S, Fleet, without_shared_cards
from deployments.latency import Latency
from deployments.messages import CardState, State
from tests.deployments.fake_backend import state_of


@dataclass(frozen=True)
class Name:
    unique_id: str


@dataclass
class FakeReplica:
    replica_id: Name
    replica_metadata: dict[str, Any]
    routing_stats: dict[str, Any] = field(default_factory=dict)


def replica(id_: str, **changes) -> FakeReplica:
    return FakeReplica(Name(id_), state_of(id_).to_dict(), changes)


def ids(fleet: Fleet) -> list[str]:
    return [state.id for state in fleet.states()]


def test_what_a_replica_said_last_covers_what_it_said_first():
    fleet = Fleet()
    one = replica("one")
    fleet.set_running([one], lambda id_: 2)
    assert fleet.states()[0].state is State.READY
    one.routing_stats = {"state": "busy", "served": 3}
    (state,) = fleet.states()
    assert (state.state, state.served, state.queue) == (State.BUSY, 3, 2)


def test_a_queue_nobody_knows_is_empty():
    fleet = Fleet()
    fleet.set_running([replica("one")], lambda id_: None)
    assert fleet.states()[0].queue == 0


def test_a_starting_replica_is_shown_until_it_runs():
    fleet = Fleet()
    starting = state_of("one", state=State.STARTING, detail="placing vae 1/3").to_dict()
    fleet.report(starting)
    assert fleet.states()[0].detail == "placing vae 1/3"
    fleet.set_running([replica("one")], lambda id_: 0)
    fleet.report(starting)  # a report that was late
    assert [state.state for state in fleet.states()] == [State.READY]


def test_a_starting_replica_that_falls_silent_is_gone():
    now = 0.0
    fleet = Fleet(lambda: now)
    fleet.report(state_of("one", state=State.STARTING).to_dict())
    now = START_REPORT_LIFE_S
    assert ids(fleet) == ["one"]
    now += 0.1
    assert ids(fleet) == []


def test_totals_keep_the_jobs_of_replicas_that_are_gone():
    fleet = Fleet()
    first = replica("one", served=2, failed=1, latency=Latency().with_one(1.0).to_dict())
    fleet.set_running([first], lambda id_: 0)
    assert fleet.totals().counts["served"] == 2
    second = replica("two", served=5, latency=Latency().with_one(3.0).to_dict())
    fleet.set_running([second], lambda id_: 0)
    totals = fleet.totals()
    assert totals.counts == {"served": 7, "failed": 1, "cancelled": 0, "retried": 0}
    assert (totals.latency.count, totals.latency.sum_s) == (2, pytest.approx(4.0))


def on(id_: str, uuid: str):
    card = CardState(name="gpu", memory_bytes=1, free_bytes=1, simulated=False, uuid=uuid)
    return state_of(id_, card=card)


def test_two_replicas_never_draw_on_the_same_card():
    first, second, third = without_shared_cards(
        [on("a", "GPU-1"), on("b", "GPU-1"), on("c", "GPU-2")]
    )
    assert (first.state, third.state) == (State.READY, State.READY)
    assert second.state is State.UNHEALTHY
    assert "GPU-1 belongs to replica a" in second.detail


def test_cards_without_an_identity_are_never_the_same():
    states = without_shared_cards([on("a", ""), on("b", "")])
    assert [state.state for state in states] == [State.READY, State.READY]
