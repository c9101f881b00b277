"""Whether another plan earns its place, from a few drawings that noise has touched."""

import pytest

from deployments.trial import Trial, slower, usual_seconds


def test_a_plan_is_judged_by_medians_so_that_one_slow_drawing_changes_nothing():
    before = Trial(seconds=(1.00, 1.01, 1.02))
    assert slower(before, Trial(seconds=(1.0, 1.01, 9.0))) == ""
    assert slower(Trial(seconds=(1.0, 1.01, 9.0)), before) == ""


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((1.0, 1.0, 1.0), (1.049, 1.049, 1.049), True),  # 5 percent may be noise
        ((1.0, 1.0, 1.0), (1.06, 1.06, 1.06), False),
        ((0.9, 1.0, 1.1), (1.29, 1.29, 1.29), True),  # a spread of 0.1 allows 0.3
        ((0.9, 1.0, 1.1), (1.31, 1.31, 1.31), False),
    ],
)
def test_what_may_be_noise_is_the_larger_of_a_share_and_the_spread(before, after, kept):
    reason = slower(Trial(seconds=before), Trial(seconds=after))
    assert (reason == "") is kept
    if not kept:
        assert f"{after[0]:.3f} s a request instead of {sorted(before)[1]:.3f} s" in reason


def test_a_usual_request_costs_its_further_steps_at_the_price_of_the_later_ones():
    # 2 s before the first step ends (it fills caches), then 0.5 s a step, 0.25 s to decode.
    ends_s = (12.0, 12.5, 13.0)
    assert usual_seconds(3.25, ends_s, 20) == pytest.approx(2 + 19 * 0.5 + 0.25)
    assert usual_seconds(3.25, ends_s, 3) == pytest.approx(3.25)
    assert usual_seconds(3.25, ends_s, 2) == pytest.approx(2.75)


def test_of_a_single_step_nothing_is_known_but_the_whole():
    assert usual_seconds(3.0, (12.0,), 20) == 3.0
    assert usual_seconds(3.0, (), 20) == 3.0
