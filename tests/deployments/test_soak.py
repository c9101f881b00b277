"""Requests of every kind while a replica is killed: each ends as it must, and nothing is left over.

The same code as ``make soak``, shorter. It leaves two ready replicas behind.
"""

import asyncio

import pytest
from starlette.testclient import TestClient

from deployments.api import create_api
from deployments.config import AppConfig
from deployments.errors import OUTCOMES
from scripts.soak import shares, soak
from scripts.soak_clients import BAD, IMAGES, Ended
from scripts.soak_fleet import Resting
from scripts.soaked import Soaked, held_wrongly
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.test_api import ARGS

REQUESTS = 60


@pytest.mark.ray
def test_every_request_ends_as_it_must_and_the_fleet_holds_what_it_held(server):
    found = asyncio.run(soak(str(server.client.base_url), num_requests=REQUESTS, kills=1))
    assert found.faults == [], found.table()
    ids = {one.request_id for one in found.ended}
    assert len(ids) == len(found.ended) == sum(found.counted.values())
    assert len([id_ for id_ in ids if id_.startswith("soak-")]) == REQUESTS
    assert len(found.killed) == 1
    assert min(found.told[outcome] for outcome in ("served", "cancelled", "refused")) > 0
    assert set(found.after) == set(found.before) == {"mini-5090", "mini-4090"}


def resting(**changes) -> Resting:
    held = {"id": "a", "allocated_bytes": 100, "own_bytes": 100, "rss_bytes": 1000}
    return Resting(**{**held, **changes})


def soaked(*ended: Ended, **changes) -> Soaked:
    values = {
        "ended": ended,
        "counted": dict.fromkeys(OUTCOMES, 0),
        "before": {"card": resting()},
        "between": {"card": resting()},
        "after": {"card": resting()},
        "killed": (),
        "retried": 0,
        "same_pictures": True,
        "seconds": 1.0,
    }
    return Soaked(**{**values, **changes})


def test_a_soak_tells_what_must_not_be():
    lost = Ended(request_id="r", kind="picture", expected="served", outcome="failed", detail="500")
    assert soaked().faults == []
    assert soaked(lost, counted={**dict.fromkeys(OUTCOMES, 0), "failed": 1}).faults == [
        "picture r ended failed, not served (500)"
    ]
    assert "the driver" in soaked(counted={**dict.fromkeys(OUTCOMES, 0), "served": 1}).faults[0]
    assert "another picture" in soaked(same_pictures=False).faults[0]
    stayed = soaked(after={"card": resting(allocated_bytes=101, own_bytes=101)})
    assert stayed.faults == ["card: 101 bytes are on it, 100 before"]
    lost = held_wrongly("card", resting(), resting(own_bytes=99))
    assert lost == ["card: 100 bytes are on it, its components have 99"]


@pytest.mark.parametrize(("rss_bytes", "faults"), [(900, 0), (1050, 0), (1051, 1)])
def test_a_replica_may_take_a_twentieth_more_than_before(rss_bytes, faults):
    assert len(held_wrongly("card", resting(), resting(rss_bytes=rss_bytes))) == faults
    grew = soaked(between={"card": resting(rss_bytes=900)}, after={"card": resting(rss_bytes=1000)})
    assert grew.faults == ["card: its replica takes 1000 B, 900 B before"]


@pytest.mark.parametrize(("num_requests", "kills"), [(500, 5), (60, 1), (7, 3)])
def test_every_request_belongs_to_one_round_and_the_last_half_kills_none(num_requests, kills):
    rounds = shares(num_requests, kills)
    assert len(rounds) == kills + 1
    assert len(rounds[-1]) >= num_requests / 2
    assert [number for share in rounds for number in share] == list(range(num_requests))


def test_every_bad_input_is_one():
    """So that "refused" is never the answer to a request that should have been drawn."""
    server = TestClient(create_api(AppConfig.model_validate(ARGS), FakeBackend()))
    only_the_pipeline_knows = 1
    refused = [server.post(**{"url": IMAGES, **bad}).status_code in range(400, 500) for bad in BAD]
    assert refused.count(False) == only_the_pipeline_knows
