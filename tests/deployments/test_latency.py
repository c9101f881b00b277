"""A histogram that merges: a fleet's total is the sum of its replicas, and quantiles are near."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.latency import BOUNDS_S, Latency, merged

SECONDS = st.lists(st.floats(0.021, 1000.0), min_size=1, max_size=60)


def histogram(durations) -> Latency:
    latency = Latency()
    for seconds in durations:
        latency = latency.with_one(seconds)
    return latency


@given(SECONDS, SECONDS)
def test_merging_equals_observing_everything_in_one_place(left, right):
    together = merged([histogram(left), histogram(right)])
    assert together.counts == histogram(left + right).counts
    assert together.sum_s == pytest.approx(math.fsum(left + right))


@given(SECONDS)
def test_a_quantile_is_right_within_one_bucket(durations):
    true = sorted(durations)[math.ceil(0.5 * len(durations)) - 1]
    found = histogram(durations).quantile_s(0.5)
    assert found <= true * 1.26
    assert found >= min(true, BOUNDS_S[-1]) / 1.26


@given(SECONDS)
def test_it_crosses_processes_as_plain_numbers(durations):
    latency = histogram(durations)
    again = Latency.from_dict(latency.to_dict())
    assert again.counts == latency.counts
    assert again.count == len(durations)
    assert again.mean_s == pytest.approx(statistics.fmean(durations), abs=1e-3)


def test_no_job_yet_is_zero_everywhere():
    assert Latency.from_dict({}) == Latency() == merged([])
    assert (Latency().mean_s, Latency().quantile_s(0.95)) == (0.0, 0.0)


def test_a_duration_on_a_bound_counts_below_it():
    assert histogram([BOUNDS_S[3]]).counts.index(1) == 3
    assert histogram([BOUNDS_S[-1] * 2]).counts[-1] == 1
