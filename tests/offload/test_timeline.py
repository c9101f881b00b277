"""Guarantee: every second of a request belongs to one share, the innermost, or to nobody."""

from itertools import pairwise

import pytest

from offload.timeline import Share, Timeline

FIRST = Share("dit", 1, "trunk")
BLOCK = Share("dit", 1, "blocks.0")
OTHER = Share("control", 1, "trunk")


def laps(line: Timeline) -> list[float]:
    moments = [float(str(moment)) for moment in line.moments]
    return [then - now for now, then in pairwise(moments)]


def test_the_innermost_owns_the_time() -> None:
    line = Timeline()
    line.push(None, 0.0)  # the engine brings things in
    line.turn(FIRST, 1.0)
    line.push(None, 3.0)  # it waits for a block
    line.turn(BLOCK, 7.0)
    line.turn(None, 15.0)
    line.pop(31.0)
    line.turn(None, 63.0)
    line.pop(127.0)
    seconds = line.seconds(laps(line))
    assert seconds == {FIRST: (3 - 1) + (63 - 31), BLOCK: 15 - 7}


def test_a_pass_within_another_takes_its_time_from_it() -> None:
    line = Timeline()
    line.push(FIRST, 0.0)
    assert line.around == FIRST
    line.push(None, 1.0)
    assert line.around == FIRST
    line.turn(OTHER, 2.0)
    assert line.around == OTHER
    line.pop(4.0)
    line.pop(8.0)
    assert line.around is None
    assert line.seconds(laps(line)) == {FIRST: 1 + 4, OTHER: 2}


def test_without_a_moment_nobody_has_any() -> None:
    assert Timeline().seconds([]) == {}


def test_passes_in_a_row_are_one_run_and_gaps_lie_between_runs() -> None:
    line = Timeline()
    for name in "aabcbbdba":
        line.ran(name)
    assert line.runs == list("abcbdba")
    assert list(line.gaps_of("a")) == [("b", "c", "d")]
    assert list(line.gaps_of("b")) == [("c",), ("d",)]
    assert list(line.gaps_of("c")) == []


def test_seconds_of_a_call_are_means_of_the_first_pass_and_of_later_ones() -> None:
    line = Timeline()
    uses = {1: 2, 2: 1, 3: 3}
    for number, count in uses.items():
        for _ in range(count):
            line.count(Share("dit", number, "blocks.0"))
    line.count(OTHER)
    seconds = {Share("dit", number, "blocks.0"): float(number) for number in uses}
    assert line.calls_of("dit") == {"blocks.0": 6}
    assert line.calls_of("vae") == {}
    assert line.seconds_of_a_call("dit", seconds, first=True) == {"blocks.0": 1 / 2}
    assert line.seconds_of_a_call("dit", seconds, first=False) == {
        "blocks.0": pytest.approx((2 + 3) / 4)
    }
    assert line.seconds_of_a_call("control", seconds, first=True) == {"trunk": 0.0}
