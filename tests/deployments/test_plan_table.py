"""The planner's choice against plans written by hand, on the demo pipeline in virtual time."""

import pytest

from offload import parse_bytes
from scripts.plan_bench import Bench
from scripts.plan_table import SIZES, Row, row


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(side=32, steps=3, bytes_per_s=100e6)


@pytest.fixture(scope="module", params=SIZES)
def drawn(request, bench: Bench) -> Row:
    return row(bench, parse_bytes(request.param), wall_times=0)


def test_no_plan_written_by_hand_is_faster(drawn: Row):
    """But for the one percent that fewer bytes are worth."""
    assert drawn.virtual_s <= 1.01 * drawn.best_by_hand_s


def test_the_predicted_seconds_are_those_of_the_virtual_clock(drawn: Row):
    assert drawn.virtual_s == pytest.approx(drawn.predicted_s, rel=0.05)


def test_the_predicted_peak_is_the_ledgers(drawn: Row):
    assert drawn.peak_bytes == pytest.approx(drawn.wall.peak_bytes, rel=0.02)


def test_the_cards_go_from_everything_fits_to_hardly_a_layer(bench: Bench):
    plans = [bench.plan(None, parse_bytes(size)) for size in SIZES]
    held = [plan.standing_bytes for plan in plans]
    assert held == sorted(held, reverse=True)
    assert all(one.lifetime == "permanent" for one in plans[0].components)
    assert plans[-1].standing_bytes < plans[0].standing_bytes / 4
    assert len(SIZES) >= 6
