"""The ranking is pure: who finishes first comes first, and who cannot draw does not come at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.messages import State
from deployments.pace import MEGAPIXEL, Shape, Speed
from deployments.rank import WAITING, Candidate, Request, deal, rank

SHAPE = Shape(pixels=MEGAPIXEL, steps=10)
ANY = Request(shape=SHAPE)
ABLE = (State.READY, State.BUSY, State.SLEEPING)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        id=st.text("abcdefgh", min_size=1, max_size=3),
        state=st.sampled_from(list(State)),
        speed=st.none() | st.builds(Speed, picture_s=st.just(0.5), work_s=st.floats(0.01, 1.0)),
        queue=st.integers(0, 3),
        queue_s=st.sampled_from([0.0, 0.5, 2.0]),
        wake_s=st.sampled_from([0.0, 3.0]),
        max_pixels=st.none() | st.sampled_from([MEGAPIXEL // 2, 2 * MEGAPIXEL]),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.id,
)
REQUESTS = st.builds(
    Request,
    shape=st.just(SHAPE),
    avoid=st.frozensets(st.text("abcdefgh", min_size=1, max_size=3), max_size=2),
)


def one(id_: str, job_s: float | None = None, **changes) -> Candidate:
    """A replica that draws ``SHAPE`` in so many seconds."""
    speed = None if job_s is None else Speed(picture_s=0.0, work_s=job_s / SHAPE.work)
    return Candidate(**{"id": id_, "state": State.READY, "speed": speed, **changes})


@given(CANDIDATES, REQUESTS)
def test_everyone_who_can_draw_it_is_ranked_once_and_nobody_else(candidates, request):
    ranks = rank(candidates, request)
    can = [c.id for c in candidates if c.state in ABLE and c.max_pixels in (None, 2 * MEGAPIXEL)]
    assert sorted(id_ for ids in ranks for id_ in ids) == sorted(can)
    assert all(ranks)


@given(CANDIDATES, REQUESTS)
def test_the_order_of_asking_changes_nothing(candidates, request):
    forth, back = rank(candidates, request), rank(candidates[::-1], request)
    assert [set(ids) for ids in forth] == [set(ids) for ids in back]


@given(CANDIDATES, REQUESTS)
def test_a_replica_where_it_failed_comes_after_all_others(candidates, request):
    ranked = [id_ for ids in rank(candidates, request) for id_ in ids]
    failed = [id_ in request.avoid for id_ in ranked]
    assert failed == sorted(failed)


def test_of_two_free_replicas_the_faster_comes_first():
    assert rank([one("slow", 9.0), one("fast", 1.0)], ANY) == [["fast"], ["slow"]]


def test_it_is_worth_waiting_for_a_much_faster_card():
    fast, slow = one("fast", 2.0, queue=1, queue_s=1.0), one("slow", 9.0)
    assert rank([slow, fast], ANY) == [["fast"], ["slow"]]  # done after 3 s instead of 9


def test_waiting_weighs_more_than_drawing():
    """It would be done sooner on the fast card, and whoever comes next would wait for it."""
    fast, slow = one("fast", 2.0, queue=1, queue_s=2.0), one("slow", 2.0 + 2.0 * WAITING - 0.1)
    assert rank([slow, fast], ANY) == [["slow"], ["fast"]]


def test_all_that_waits_there_counts_not_how_many():
    long, short = one("long", 1.0, queue=1, queue_s=6.0), one("short", 1.0, queue=3, queue_s=3.0)
    assert rank([long, short], ANY) == [["short"], ["long"]]


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        (Shape(pixels=MEGAPIXEL, steps=1), [["sprinter"], ["stayer"]]),  # 2 s against 3
        (Shape(pixels=MEGAPIXEL, steps=40), [["stayer"], ["sprinter"]]),  # 41 s against 22.5
        (Shape(pixels=MEGAPIXEL // 4, steps=40), [["stayer"], ["sprinter"]]),  # 11 s against 7.5
    ],
)
def test_the_faster_one_depends_on_the_shape(shape, order):
    sprinter = one("sprinter", speed=Speed(picture_s=1.0, work_s=1.0))
    stayer = one("stayer", speed=Speed(picture_s=2.5, work_s=0.5))
    assert rank([stayer, sprinter], Request(shape=shape)) == order


def test_a_card_that_was_never_tried_is_taken_for_as_fast_as_the_fastest_and_tried_first():
    assert rank([one("slow", 9.0), one("known", 1.0), one("new")], ANY)[0] == ["new"]
    occupied = one("new", queue=1, queue_s=1.0)
    assert rank([one("slow", 9.0), one("known", 1.0), occupied], ANY)[0] == ["known"]


def test_equals_share_a_rank():
    assert rank([one("a", 1.0), one("b", 1.0)], ANY) == [["a", "b"]]


def test_of_equals_the_awake_one_comes_first():
    asleep = one("asleep", 1.0, state=State.SLEEPING, wake_s=0.0)
    assert rank([asleep, one("awake", 1.0)], ANY) == [["awake"], ["asleep"]]


@pytest.mark.parametrize(("wake_s", "first"), [(7.9, "asleep"), (8.1, "awake")])
def test_a_sleeping_replica_is_woken_only_when_that_pays(wake_s, first):
    asleep = one("asleep", 1.0, state=State.SLEEPING, wake_s=wake_s)
    assert rank([asleep, one("awake", 9.0)], ANY)[0] == [first]


def test_a_replica_that_wakes_already_wakes_only_once():
    waking = one("waking", 1.0, state=State.SLEEPING, wake_s=50.0, queue=1, queue_s=1.0)
    assert rank([waking, one("awake", 9.0)], ANY)[0] == ["waking"]


@pytest.mark.parametrize("state", [State.UNHEALTHY, State.DRAINING, State.STARTING])
def test_a_replica_that_cannot_draw_is_never_chosen(state):
    unable = one("unable", 1.0, state=state)
    assert rank([unable, one("busy", 9.0, queue=4, queue_s=36.0)], ANY) == [["busy"]]
    assert rank([unable], ANY) == []
    assert rank([unable], Request(shape=SHAPE, pin="unable")) == []


def test_a_picture_too_large_for_a_card_never_goes_there():
    small = one("small", 0.1, max_pixels=MEGAPIXEL - 1)
    assert rank([small, one("large", 9.0, max_pixels=MEGAPIXEL)], ANY) == [["large"]]
    assert rank([small], ANY) == []


def test_a_pinned_request_has_its_replica_alone_or_nothing():
    candidates = [one("a", 1.0), one("b", 9.0, queue=3, queue_s=27.0)]
    assert rank(candidates, Request(shape=SHAPE, pin="b")) == [["b"]]
    assert rank(candidates, Request(shape=SHAPE, pin="gone")) == []


def test_each_request_sees_the_jobs_of_those_before_it():
    """Two cards, 2 s and 9 s a job: WAITING x wait + job is 2, then 12 for the fast one."""
    places = list(deal([one("fast", 2.0), one("slow", 9.0)], [ANY] * 4))
    assert [(place.id, place.wait_s) for place in places] == [
        ("fast", 0.0),
        ("slow", 0.0),
        ("fast", 2.0),
        ("fast", 4.0),
    ]


def test_a_request_that_nobody_can_take_leaves_the_others_their_places():
    huge = Request(shape=Shape(pixels=2 * MEGAPIXEL, steps=1))
    places = list(deal([one("a", 1.0, max_pixels=MEGAPIXEL)], [huge, ANY]))
    assert places[0] is None
    assert (places[1].id, places[1].wait_s) == ("a", 0.0)
