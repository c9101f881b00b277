"""The seconds that a job will still take, on a clock that the test sets."""

import pytest

from deployments.remaining import Remaining


class Clock:
    """Shows what it was set to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def steps(remaining, clock, *, first_s=1.0, step_s=2.0, of=5, ending_s=3.0) -> list[float]:
    """Seconds left as told after each step of one job."""
    remaining.begin()
    told = []
    for step in range(1, of + 1):
        clock.now_s += first_s if step == 1 else step_s
        told.append(remaining.left_s(step, of))
    clock.now_s += ending_s
    remaining.end()
    return told


def test_the_pace_of_later_steps_counts_once_there_is_one():
    clock = Clock()
    told = steps(Remaining(clock), clock)
    assert told == pytest.approx([1.0 * 4, 2.0 * 3, 2.0 * 2, 2.0 * 1, 0.0])


def test_the_next_job_knows_how_long_the_end_takes():
    clock = Clock()
    remaining = Remaining(clock)
    steps(remaining, clock, ending_s=3.0)
    assert steps(remaining, clock)[1:] == pytest.approx([2.0 * 3 + 3, 2.0 * 2 + 3, 2.0 + 3, 3.0])


def test_a_job_that_begins_anew_is_foretold_from_there():
    clock = Clock()
    remaining = Remaining(clock)
    remaining.begin()
    for step in (1, 2, 3):
        clock.now_s += 2.0
        remaining.left_s(step, 5)
    clock.now_s += 6.0  # lost to out of memory
    assert remaining.left_s(1, 5) == pytest.approx(6.0 * 4)
    clock.now_s += 2.0
    assert remaining.left_s(2, 5) == pytest.approx(2.0 * 3)
