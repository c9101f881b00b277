"""The ranking: pure, never empty while there is a replica, free before busy, soon before late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.messages import State
from deployments.rank import Candidate, rank

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        id=st.text("abcdefgh", min_size=1, max_size=3),
        state=st.sampled_from(list(State)),
        queue=st.integers(0, 5),
        job_s=st.sampled_from([0.0, 0.5, 2.0]),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.id,
)


def one(id_: str, **changes) -> Candidate:
    return Candidate(**{"id": id_, "state": State.READY, **changes})


@given(CANDIDATES)
def test_every_replica_that_can_draw_is_ranked_once_and_if_none_can_all_are(candidates):
    ranked = [id_ for ids in rank(candidates) for id_ in ids]
    able = [c for c in candidates if c.state in (State.READY, State.BUSY, State.SLEEPING)]
    assert sorted(ranked) == sorted(candidate.id for candidate in able or candidates)
    assert all(rank(candidates))


@given(CANDIDATES)
def test_the_order_of_asking_changes_nothing(candidates):
    forth, back = rank(candidates), rank(candidates[::-1])
    assert [set(ids) for ids in forth] == [set(ids) for ids in back]


def test_a_free_replica_comes_before_a_busy_one_that_is_faster():
    assert rank([one("fast", queue=1, job_s=1.0), one("slow", job_s=9.0)]) == [["slow"], ["fast"]]


def test_of_two_free_replicas_the_faster_comes_first():
    assert rank([one("slow", job_s=9.0), one("fast", job_s=1.0)]) == [["fast"], ["slow"]]


def test_of_two_busy_replicas_the_one_that_is_done_sooner_comes_first():
    assert rank([one("long", queue=3, job_s=1.0), one("short", queue=1, job_s=1.5)]) == [
        ["short"],
        ["long"],
    ]


def test_a_card_that_was_never_tried_is_tried_first():
    assert rank([one("known", job_s=1.0), one("new")]) == [["new"], ["known"]]


def test_equals_share_a_rank():
    assert rank([one("a", job_s=1.0), one("b", job_s=1.0)]) == [["a", "b"]]


@pytest.mark.parametrize("state", [State.UNHEALTHY, State.DRAINING, State.STARTING])
def test_a_replica_that_cannot_draw_is_left_out_while_another_can(state):
    unable = one("unable", state=state)
    assert rank([unable, one("busy", queue=4, job_s=9.0)]) == [["busy"]]
    assert rank([unable]) == [["unable"]]


def test_a_pinned_request_has_its_replica_alone_or_nothing():
    candidates = [one("a"), one("b", queue=3)]
    assert rank(candidates, pin="b") == [["b"]]
    assert rank(candidates, pin="gone") == []
