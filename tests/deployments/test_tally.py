"""A replica's tally: sums that are sums, and that a reader never sees change under it."""

import pytest

from deployments.tally import MOVED, Tally
from offload.report import ComponentUsage, RequestUsage


def usage(**copied: int) -> dict:
    whole = RequestUsage()
    for name, num_bytes in copied.items():
        whole.components[name] = ComponentUsage(copied_bytes=num_bytes, stall_s=0.5, prefetched=2)
    return whole.to_dict()


def test_what_served_jobs_moved_is_summed_by_component():
    tally = Tally()
    tally.served(1.0, usage(vae=5, dit=1))
    tally.served(3.0, usage(vae=7))
    assert tally.moved["vae"] == {
        "copied_bytes": 12,
        "stall_s": 1.0,
        "arming_s": 0,
        "wasted_bytes": 0,
        "on_the_spot": 0,
        "prefetched": 4,
    }
    assert tally.moved["dit"]["copied_bytes"] == 1
    assert (tally.latency.count, tally.latency.sum_s) == (2, pytest.approx(4.0))
    assert tally.counts["served"] == 2


def test_everything_that_is_summed_exists_in_a_requests_usage():
    assert set(MOVED) < set(ComponentUsage().to_dict())


def test_what_a_reader_holds_does_not_change():
    tally = Tally()
    tally.served(1.0, usage(vae=5))
    held = tally.moved
    tally.served(1.0, usage(vae=5))
    assert held["vae"]["copied_bytes"] == 5


def test_outcomes_are_counted_apart():
    tally = Tally()
    for outcome in ("failed", "cancelled", "cancelled", "refused", "retried"):
        tally.count(outcome)
    assert tally.counts == {"served": 0, "failed": 1, "cancelled": 2, "refused": 1, "retried": 1}
