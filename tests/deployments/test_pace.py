"""A card's pace: what it is told of jobs is what it tells of the next one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.pace import MEGAPIXEL, Pace, Shape, Speed

SHAPES = st.builds(
    Shape,
    pixels=st.sampled_from([MEGAPIXEL // 16, MEGAPIXEL // 4, MEGAPIXEL]),
    steps=st.integers(1, 50),
    images=st.integers(1, 4),
)
SPEEDS = st.builds(Speed, picture_s=st.floats(0, 10), work_s=st.floats(0.01, 5))


def learnt(shapes, speed) -> Pace:
    pace = Pace()
    for shape in shapes:
        pace = pace.with_one(shape, speed.seconds_of(shape))
    return pace


def test_nothing_is_known_before_the_first_job():
    assert Pace().speed is None


@given(SPEEDS, SHAPES, SHAPES)
def test_two_jobs_of_unlike_work_tell_both_parts(true, first, second):
    if 4 * first.work < second.work:
        found = learnt([first, second], true).speed
        assert found.picture_s == pytest.approx(true.picture_s, rel=1e-6, abs=1e-6)
        assert found.work_s == pytest.approx(true.work_s, rel=1e-6, abs=1e-6)


@given(SPEEDS, SHAPES)
def test_after_one_job_the_same_job_takes_the_same_time(true, shape):
    found = learnt([shape], true).speed
    assert found.seconds_of(shape) == pytest.approx(true.seconds_of(shape))


@given(st.lists(st.tuples(SHAPES, st.floats(0.01, 100)), min_size=1, max_size=20))
def test_neither_part_is_ever_below_zero(jobs):
    pace = Pace()
    for shape, seconds in jobs:
        pace = pace.with_one(shape, seconds)
    assert pace.speed.picture_s >= -1e-9
    assert pace.speed.work_s >= 0


def test_a_plan_that_changed_is_reflected_after_some_jobs():
    shape, before, after = Shape(pixels=MEGAPIXEL, steps=20), Speed(picture_s=0, work_s=1), 40.0
    pace = learnt([shape] * 50, before)
    for _ in range(10):
        pace = pace.with_one(shape, after)
    assert pace.speed.seconds_of(shape) == pytest.approx(after, rel=0.1)


def test_images_of_one_job_are_drawn_one_after_the_other():
    speed = Speed(picture_s=2.0, work_s=0.5)
    assert speed.seconds_of(Shape(pixels=MEGAPIXEL, steps=10, images=3)) == 3 * (2.0 + 5.0)
