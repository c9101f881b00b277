"""Where a start-up stands: seconds by stage, and one line for whoever waits."""

import pytest

from deployments.stages import Stages


def test_seconds_are_counted_by_stage_and_a_second_try_adds_up():
    now = 0.0
    stages = Stages(lambda: now)
    for spent in (2.0, 1.5):
        with stages.stage("load", "loading demo"):
            assert stages.detail == "loading demo"
            now += spent
    assert stages.seconds == {"load": 3.5}
    assert stages.summary() == "ready in 3.5 s: load 3.5 s"


def test_a_stage_that_fails_is_counted_too():
    times = iter([0.0, 1.0, 4.0])  # made, entered, left
    stages = Stages(lambda: next(times))
    with pytest.raises(KeyError), stages.stage("place", "planning"):
        raise KeyError
    assert stages.seconds == {"place": 3.0}


def test_placing_tells_the_component_and_how_far_it_is():
    stages = Stages()
    stages.placing("text_encoder", 12, 66)
    assert stages.detail == "placing text_encoder 12/66"
