"""The registry: those that run, those that start, those that are gone, and who owns which card."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from deployments.fleet import START_REPORT_LIFE_S, Fleet, without_shared_cards
from deployments.latency import Latency
from deployments.messages import CardState, State
from deployments.pace import Shape
from deployments.rank import Request
from tests.deployments.fake_backend import state_of

SHAPE = Shape(pixels=64, steps=2)


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
    fleet.set_running([one])
    assert fleet.states()[0].state is State.READY
    one.routing_stats = {"state": "busy", "served": 3}
    (state,) = fleet.states()
    assert (state.state, state.served) == (State.BUSY, 3)


def test_a_replicas_queue_is_what_it_draws_and_what_is_expected_to_go_there():
    fleet = Fleet()
    fleet.set_running([replica("one", predicted_s=1.0), replica("two", predicted_s=50.0)])
    fleet.forecast.expect(SHAPE)
    for id_ in "abc":
        fleet.line.open(id_, Request(shape=SHAPE))
    assert [state.queue for state in fleet.states()] == [3, 0]
    assert fleet.totals().waiting == 2


def test_a_replica_that_becomes_known_has_its_turn_at_once():
    fleet = Fleet()
    fleet.line.open("waits", Request(shape=SHAPE))
    fleet.set_running([replica("one")])
    assert fleet.line.place_of("waits") == "one"


def test_a_replica_that_left_or_was_lost_gets_no_job():
    fleet = Fleet()
    fleet.set_running([replica("one"), replica("two")])
    fleet.lose("one", "the process died")
    assert [one.state for one in fleet.candidates()] == [State.UNHEALTHY, State.READY]
    assert fleet.states()[0].detail == "the process died"
    fleet.set_running([replica("two")])
    assert [one.id for one in fleet.candidates()] == ["two"]


def test_what_is_known_of_a_replicas_pace_leaves_with_it():
    fleet = Fleet()
    fleet.set_running([replica("one")])
    fleet.states()
    fleet.job_ended("one", SHAPE, 3.0)
    assert fleet.candidates()[0].speed.seconds_of(SHAPE) == pytest.approx(3.0)
    fleet.set_running([])
    fleet.set_running([replica("one")])
    assert fleet.candidates()[0].speed is None


def test_a_starting_replica_is_shown_until_it_runs():
    fleet = Fleet()
    starting = state_of("one", state=State.STARTING, detail="placing vae 1/3").to_dict()
    fleet.report(starting)
    assert fleet.states()[0].detail == "placing vae 1/3"
    fleet.set_running([replica("one")])
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
    first = replica(
        "one",
        served=2,
        failed=1,
        latency=Latency().with_one(1.0).to_dict(),
        moved={"vae": {"copied_bytes": 5}, "dit": {"copied_bytes": 1}},
    )
    fleet.set_running([first])
    assert fleet.totals().counts["served"] == 2
    second = replica(
        "two",
        served=5,
        out_of_memory=1,
        latency=Latency().with_one(3.0).to_dict(),
        moved={"vae": {"copied_bytes": 7}},
    )
    fleet.set_running([second])
    totals = fleet.totals()
    none = {"cancelled": 0, "refused": 0, "retried": 0}
    assert totals.counts == {"served": 7, "failed": 1, "out_of_memory": 1, **none}
    assert totals.moved == {"vae": {"copied_bytes": 12}, "dit": {"copied_bytes": 1}}
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
