"""The line: turns go where they end first, none is lost, and no replica gets two jobs at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import ReplicaNotFound
from deployments.line import LONGEST_REFUSED_S, OVERRUN, REDEAL_S, REFUSED_S, Line
from deployments.messages import State
from deployments.rank import Request
from tests.deployments.test_rank import ANY, SHAPE, one


class Fleet:
    """Replicas and a clock that stands still until it is set."""

    def __init__(self, *candidates) -> None:
        self.candidates, self.now_s = list(candidates), 0.0
        self.line = Line(lambda: self.candidates, lambda: self.now_s)
        self.called: list[str] = []

    def take(self, id_: str) -> str | None:
        return self.line.take(id_, lambda: self.called.append(id_))


@pytest.fixture
def two() -> Fleet:
    return Fleet(one("fast", 2.0), one("slow", 9.0))


def test_a_request_has_its_turn_at_once_where_a_replica_is_free(two):
    two.line.open("r", ANY)
    assert two.line.num_waiting == 0
    assert two.take("r") == two.line.place_of("r") == "fast"
    assert two.line.wait_s("r") == 0.0


def test_who_waits_is_called_when_its_replica_is_free_again(two):
    two.line.open("first", ANY)
    two.now_s = 1.5
    two.line.open("second", ANY)  # 0.5 s of waiting and 2 s there, or 9 s on the slow one
    assert two.take("second") is None
    assert (two.line.num_waiting, two.line.wait_s("second")) == (1, 0.5)
    assert two.line.queues() == {"fast": 2, "slow": 0}
    two.line.close("first")
    assert two.called == ["second"]
    assert two.take("second") == "fast"


def test_a_job_that_takes_longer_than_expected_sends_those_who_wait_elsewhere(two):
    two.line.open("first", ANY)
    two.now_s = 1.0
    two.line.open("second", ANY)
    assert two.take("second") is None  # one second of waiting and two of drawing, instead of nine
    two.now_s = 30.0
    assert two.take("second") == "slow"  # 3 s of waiting are expected now, and weigh fourfold


def test_what_is_overdue_is_expected_to_take_a_share_of_its_time_again(two):
    two.candidates = [one("only", 2.0)]
    two.line.open("first", ANY)
    two.line.open("second", ANY)
    two.now_s = 100.0
    assert two.line.wait_s("second") == pytest.approx(OVERRUN * 100.0)


def test_requests_have_their_turns_in_order_of_arrival():
    fleet = Fleet(one("only", 1.0))
    for id_ in "abc":
        fleet.line.open(id_, ANY)
    turns = []
    for _ in range(3):
        (drawing,) = [id_ for id_ in "abc" if fleet.line.place_of(id_)]
        turns.append(drawing)
        fleet.line.close(drawing)
    assert turns == ["a", "b", "c"]


def test_a_request_that_was_tried_already_goes_to_the_front():
    fleet = Fleet(one("only", 1.0))
    for id_ in ("drawing", "waiting"):
        fleet.line.open(id_, ANY)
    fleet.line.open("again", ANY, first=True)
    fleet.line.close("drawing")
    assert fleet.line.place_of("again") == "only"


def test_a_pinned_request_waits_for_its_replica_and_keeps_no_other_from_its_turn(two):
    for id_ in ("first", "pinned"):
        two.line.open(id_, Request(shape=SHAPE, pin="fast"))
    two.line.open("free", ANY)
    assert [two.take(id_) for id_ in ("first", "pinned", "free")] == ["fast", None, "slow"]


def test_a_pinned_request_fails_when_its_replica_leaves(two):
    two.line.open("pinned", Request(shape=SHAPE, pin="fast"))
    two.line.open("other", Request(shape=SHAPE, pin="fast"))
    assert two.take("other") is None
    two.candidates = [one("slow", 9.0), one("fast", 2.0, state=State.UNHEALTHY)]
    two.line.deal()
    assert two.called == ["other"]
    with pytest.raises(ReplicaNotFound, match="'fast' is gone or cannot draw"):
        two.take("other")


def test_before_any_replica_is_known_everyone_waits():
    fleet = Fleet()
    fleet.line.open("r", Request(shape=SHAPE, pin="late"))
    assert fleet.take("r") is None
    assert fleet.line.wait_s("r") == 0.0
    fleet.candidates = [one("late", 1.0)]
    fleet.line.deal()
    assert fleet.take("r") == "late"


def test_a_replica_that_turns_a_job_away_is_left_alone_for_longer_and_longer():
    fleet = Fleet(one("only", 1.0))
    fleet.line.open("r", ANY)
    pauses = []
    for _ in range(8):
        assert fleet.take("r") == "only"
        assert fleet.take("r") is None  # asked again: it was not taken
        pauses.append(fleet.line.patience_s)
        fleet.now_s += fleet.line.patience_s
        while fleet.line._refused.get("only", 0.0) > fleet.now_s:
            fleet.now_s += 0.01
    assert pauses[0] == pytest.approx(REFUSED_S)
    assert pauses[1] == pytest.approx(2 * REFUSED_S)
    assert max(pauses) <= REDEAL_S  # news or not, the line is looked at again
    fleet.take("r")
    fleet.take("r")
    assert fleet.line._refused["only"] - fleet.now_s == pytest.approx(LONGEST_REFUSED_S)


def test_a_job_that_was_turned_away_goes_to_another_replica_that_is_as_good():
    fleet = Fleet(one("fast", 2.0), one("next", 2.01), one("slow", 9.0))
    fleet.line.open("r", ANY)
    assert [fleet.take("r"), fleet.take("r")] == ["fast", "next"]


def test_a_request_that_is_over_has_no_turn(two):
    two.line.open("r", ANY)
    two.line.close("r")
    two.line.close("r")
    assert not two.line.knows("r")
    assert two.take("r") is None


EVENTS = st.lists(st.tuples(st.sampled_from(["open", "close", "wait"]), st.integers(0, 9)))


@given(EVENTS)
def test_no_replica_draws_two_jobs_and_nobody_waits_while_all_are_free(events):
    fleet = Fleet(one("fast", 2.0), one("slow", 9.0), one("new"))
    open_ids: list[str] = []
    for number, (what, which) in enumerate(events):
        if what == "open":
            open_ids.append(str(number))
            fleet.line.open(str(number), ANY)
        elif what == "close" and open_ids:
            fleet.line.close(open_ids.pop(which % len(open_ids)))
        else:
            fleet.now_s += which
            fleet.line.deal()
        places = [place for id_ in open_ids if (place := fleet.line.place_of(id_))]
        assert len(places) == len(set(places))
        assert places or not open_ids
        assert fleet.line.num_waiting == len(open_ids) - len(places)
