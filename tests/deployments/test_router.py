"""The router follows the line, honours a pin, and answers at once for a replica that is gone."""

import asyncio
from types import SimpleNamespace

import pytest
from ray import cloudpickle

from deployments import fleet
from deployments.errors import ReplicaNotFound
from deployments.pace import Shape
from deployments.rank import Request
from deployments.router import FleetRouter
from tests.deployments.fake_backend import state_of

SHAPE = Shape(pixels=64, steps=2)


class FakeReplica:
    """As much of Serve's RunningReplica as the router reads."""

    def __init__(self, id_: str, **changes) -> None:
        self.replica_id = SimpleNamespace(unique_id=id_)
        self.replica_metadata = state_of(id_).to_dict()
        self.routing_stats = changes


@pytest.fixture
def registry(monkeypatch):
    own = fleet.Fleet()
    own.forecast.expect(SHAPE)
    monkeypatch.setattr(fleet, "FLEET", own)
    return own


def asked(job: str = "", pin: str = "") -> SimpleNamespace:
    """A call on its way: of a job, or of another kind that is for one replica."""
    return SimpleNamespace(
        routing_context=SimpleNamespace(should_backoff=False),
        metadata=SimpleNamespace(session_id=pin),
        args=[{"request_id": job}] if job else [],
        future=asyncio.get_running_loop().create_future(),
    )


async def choose(replicas, request) -> list[str]:
    """Ids of the one rank, or none."""
    # The method alone: a whole router needs a Serve controller, which the cluster tests have.
    ranks = await FleetRouter.choose_replicas(SimpleNamespace(), replicas, request)
    assert len(ranks) <= 1
    return [replica.replica_id.unique_id for rank in ranks for replica in rank]


@pytest.fixture
def replicas(registry):
    both = [FakeReplica("slow", predicted_s=9.0), FakeReplica("fast", predicted_s=1.0)]
    registry.set_running(both)
    return both


def test_a_job_goes_where_it_is_its_turn(registry, replicas):
    async def run():
        registry.line.open("job", Request(shape=SHAPE))
        request = asked("job")
        assert await choose(replicas, request) == ["fast"]
        assert request.routing_context.should_backoff  # should it not be taken after all

    asyncio.run(run())


def test_a_job_waits_until_its_replica_is_free_and_is_sent_at_once_then(registry, replicas):
    async def run():
        registry.line.open("before", Request(shape=SHAPE, pin="fast"))
        registry.line.open("job", Request(shape=SHAPE, pin="fast"))
        request = asked("job")
        assert await choose(replicas, request) == []  # the router asks again
        assert not request.routing_context.should_backoff  # it has waited already
        waiting = asyncio.create_task(choose(replicas, request))
        await asyncio.sleep(0.01)
        registry.line.close("before")
        assert await asyncio.wait_for(waiting, 0.1) == ["fast"]

    asyncio.run(run())


def test_a_replica_that_ray_has_just_lost_is_not_waited_for(registry, replicas):
    async def run():
        registry.line.open("job", Request(shape=SHAPE))
        request = asked("job")
        left = [one for one in replicas if one.replica_id.unique_id != "fast"]
        assert await choose(left, request) == []
        for _ in range(20):  # until the line has given up on it
            if chosen := await choose(left, request):
                break
            registry.lose("fast", "the process died")
        assert chosen == ["slow"]

    asyncio.run(run())


def test_a_pinned_job_whose_replica_leaves_fails_at_once_and_still_has_a_ranking(registry):
    async def run():
        one = [FakeReplica("a")]
        registry.set_running(one)
        registry.line.open("job", Request(shape=SHAPE, pin="gone"))
        request = asked("job")
        assert await choose(one, request) == ["a"]
        assert isinstance(request.future.exception(), ReplicaNotFound)

    asyncio.run(run())


def test_a_call_for_one_replica_goes_there(registry, replicas):
    async def run():
        assert await choose(replicas, asked(pin="slow")) == ["slow"]
        lost = asked(pin="gone")
        assert set(await choose(replicas, lost)) == {"slow", "fast"}
        assert isinstance(lost.future.exception(), ReplicaNotFound)

    asyncio.run(run())


def test_a_call_that_is_no_job_of_the_line_may_go_anywhere(registry, replicas):
    async def run():
        assert set(await choose(replicas, asked("unknown"))) == {"slow", "fast"}
        assert set(await choose(replicas, None)) == {"slow", "fast"}

    asyncio.run(run())


def test_of_two_calls_from_one_request_each_has_its_own_replica():
    """Ray gives both one internal id, as when the driver tells two replicas to sleep at once."""

    async def run():
        first, second, older = asked(pin="a"), asked(pin="b"), asked(pin="c")
        router = SimpleNamespace(
            _pending_requests_to_fulfill=[older, first, second],
            _record_queue_wait_time=lambda pending: None,
            _remove_pending_request_from_indices=lambda pending: None,
        )
        for request in (second, first):
            name = request.metadata.session_id
            FleetRouter._fulfill_next_pending_request(router, name, request.metadata)
        assert (first.future.result(), second.future.result()) == ("a", "b")
        assert not older.future.done()

    asyncio.run(run())


def test_a_request_that_waits_keeps_no_other_from_being_routed():
    """By Ray's own limit, two for each replica, four pinned requests would block two cards."""
    assert FleetRouter.max_num_routing_tasks.fget(SimpleNamespace()) > 1000


def test_the_class_travels_by_value_without_the_registry():
    travelled = cloudpickle.loads(cloudpickle.dumps(FleetRouter))
    assert travelled.choose_replicas.__globals__["fleet"] is fleet
