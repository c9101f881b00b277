"""The router between Serve and the ranking: backs off, is never empty, fails a lost pin at once."""

import asyncio
from types import SimpleNamespace

import pytest
from ray import cloudpickle

from deployments import fleet
from deployments.errors import ReplicaNotFound
from deployments.latency import Latency
from deployments.router import FleetRouter
from tests.deployments.fake_backend import state_of


class FakeReplica:
    """As much of Serve's RunningReplica as the router reads."""

    def __init__(self, id_: str, **changes) -> None:
        self.replica_id = SimpleNamespace(unique_id=id_)
        self.replica_metadata = state_of(id_).to_dict()
        self.routing_stats = changes


@pytest.fixture
def registry(monkeypatch):
    own = fleet.Fleet()
    monkeypatch.setattr(fleet, "FLEET", own)
    return own


def request(pin: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        routing_context=SimpleNamespace(should_backoff=False),
        metadata=SimpleNamespace(session_id=pin),
        future=asyncio.get_running_loop().create_future(),
    )


def choose(registry, replicas, pin=""):
    """Ranks by id, the request, and its error."""

    async def run():
        registry.set_running(replicas, lambda id_: 0)
        asked = request(pin)
        # The method alone: a whole router needs a Serve controller, which the cluster tests have.
        ranks = await FleetRouter.choose_replicas(SimpleNamespace(), replicas, asked)
        error = asked.future.exception() if asked.future.done() else None
        return [[r.replica_id.unique_id for r in rank] for rank in ranks], asked, error

    return asyncio.run(run())


def test_replicas_are_ranked_by_what_they_said(registry):
    slow = FakeReplica("slow", latency=Latency().with_one(9.0).to_dict())
    fast = FakeReplica("fast", latency=Latency().with_one(1.0).to_dict())
    ranks, asked, error = choose(registry, [slow, fast])
    assert ranks == [["fast"], ["slow"]]
    assert asked.routing_context.should_backoff
    assert error is None


def test_a_pin_is_followed(registry):
    ranks, _, error = choose(registry, [FakeReplica("a"), FakeReplica("b")], pin="b")
    assert (ranks, error) == ([["b"]], None)


def test_a_lost_pin_fails_at_once_and_still_leaves_a_ranking(registry):
    ranks, _, error = choose(registry, [FakeReplica("a")], pin="gone")
    assert isinstance(error, ReplicaNotFound)
    assert ranks == [["a"]]


def test_a_replica_that_the_registry_does_not_know_yet_is_still_tried(registry):
    async def run():
        asked = request()
        return await FleetRouter.choose_replicas(SimpleNamespace(), [FakeReplica("new")], asked)

    (rank,) = asyncio.run(run())
    assert [replica.replica_id.unique_id for replica in rank] == ["new"]


def test_the_class_travels_by_value_without_the_registry():
    travelled = cloudpickle.loads(cloudpickle.dumps(FleetRouter))
    assert travelled.choose_replicas.__globals__["fleet"] is fleet
