"""A replica's start: measured at the largest admitted picture, remembered, and lowered if need be.

The demo model on simulated cards, as a replica does it, without Ray.
"""

import json

import pytest

from deployments.errors import JobError
from tests.deployments.test_engine import config, draw, engine_of, job

TINY = [{"name": "tiny", "memory": "3MiB", "rate": "400MB/s"}]


def measured(**args):
    return config(calibrate=True, defaults={"size": "64x64", "steps": 4}, **args)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def first(folder):
    return engine_of(measured(calibration_dir=str(folder)), rank=1)


def test_prediction_and_measurement_stand_side_by_side(first):
    calibration = first.calibration
    assert calibration["measured_s"] > 0
    assert calibration["from_record"] is False
    assert first.predicted_s == calibration["predicted_s"] > 0
    assert f"predicted {first.predicted_s:.3f} s a request" in first.explanation
    assert "measured at 128x128" in first.explanation  # the largest admitted, not the default


def test_activations_were_measured_and_are_in_the_plan(first):
    plan = first._residency.plan
    assert all(one.activation_bytes > 0 for one in plan.components)
    assert plan["vae"].activation_bytes > plan["text_encoder"].activation_bytes
    assert plan.fits


def test_the_next_start_needs_one_warm_up_and_comes_to_the_same_plan(first, folder):
    (file,) = folder.iterdir()
    written = json.loads(file.read_text())
    again = engine_of(measured(calibration_dir=str(folder)), rank=1)
    assert again.calibration["from_record"] is True
    assert "calibrate" not in again._stages.seconds
    assert again.calibration["kept"] == first.calibration["kept"]
    if first.calibration["kept"]:
        assert again._residency.plan == first._residency.plan
    assert json.loads(file.read_text()) == written
    assert draw(again).images == draw(first).images


def test_a_replica_on_a_fuller_card_plans_smaller_from_the_same_record(first, folder):
    (card,) = [c for c in first._config.cards.simulated if c.name == first.card.name]
    fuller = {**card.model_dump(), "used": "2MiB"}
    again = engine_of(measured(simulated=[fuller], calibration_dir=str(folder)))
    assert again.calibration["from_record"] is True
    standing = first._residency.plan.standing_bytes
    assert again._residency.plan.standing_bytes <= standing - (1 << 20)
    assert draw(again).images == draw(first).images


def test_a_record_of_other_limits_is_not_used_and_says_so(first, folder, caplog, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    limits = {**first._config.limits.model_dump(), "max_pixels": 4096}
    with caplog.at_level("INFO", logger="ray.serve"):
        again = engine_of(measured(calibration_dir=str(tmp_path), limits=limits), rank=1)
    assert again.calibration["from_record"] is False
    assert any("limits: max_pixels 16384, now 4096" in line for line in caplog.messages)


def test_a_card_that_cannot_hold_the_largest_picture_admits_less_and_says_so(caplog):
    with caplog.at_level("WARNING", logger="ray.serve"):
        engine = engine_of(measured(simulated=TINY))
    assert engine.max_pixels < 128 * 128
    assert any("so it admits up to" in line for line in caplog.messages)
    with pytest.raises(JobError, match=f"up to {engine.max_pixels} pixels"):
        draw(engine, width=128, height=128)
    side = int(engine.max_pixels**0.5)
    assert draw(engine, width=side, height=side).images
    assert job(width=side).width == side
