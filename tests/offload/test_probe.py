"""Guarantee: on a card that runs behind the host, a probe measures with events and never waits.

Driven by the recording fake: the host goes ahead through a whole request, then the card runs it.
"""

import pytest
import torch

from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import COMPUTE
from offload.errors import StateError
from offload.measured import Measured
from offload.probe import Probe
from offload.report import RequestUsage
from offload.settling import settle
from tests.offload.cards.accelerator_kit import borne, sent
from tests.offload.cards.fake_device import FakeTorch

COPY_MS = 8.0
PEAK = "allocated_bytes.all.peak"


class Request:
    """Two passes of a net of one streamed block and one permanent, as the engine would tell it."""

    def __init__(self) -> None:
        self.api = FakeTorch()
        self.api.bytes_per_ms = 1024 / COPY_MS
        self.card = AcceleratorCard("cuda:0", api=self.api)
        self.probe = Probe(self.card, "measured at 8x8")
        self.usage = RequestUsage()

    def run(self) -> None:
        probe = self.probe
        probe.request_begins(self.usage)
        for number in (1, 2):
            self.one_pass(number)
        settle(self.card, self.usage, 0.0)
        probe.request_is_over(finished=True)

    def one_pass(self, number: int) -> None:
        api, card, probe = self.api, self.card, self.probe
        probe.pass_comes("net")
        memory = borne(card, 1024)
        ready = sent(card, memory, torch.zeros(1024, dtype=torch.uint8))
        api.stats = {PEAK: 1024}
        probe.pass_begins("net")
        api.launch(1.0)
        probe.unit_comes()
        card.wait(ready, COMPUTE, charge_to="net")
        probe.unit_begins("streamed")
        api.launch(2.0 * number)
        probe.unit_ends()
        probe.unit_is_over()
        probe.unit_comes()
        probe.unit_begins("permanent")
        api.launch(4.0)
        api.stats = {PEAK: 1024 + 500 * number}
        probe.unit_ends()
        probe.unit_is_over()
        api.launch(0.5)
        probe.pass_ends("net")
        card.release(memory)
        probe.pass_is_over("net")
        api.stats = {PEAK: 0}
        api.launch(16.0)  # between passes: nobody's

    def measured(self) -> Measured:
        self.run()
        self.api.run()
        return self.probe.measured()


@pytest.fixture
def request_() -> Request:
    return Request()


def test_units_have_the_cards_own_seconds_without_the_stalls(request_: Request) -> None:
    seen = request_.measured().components["net"]
    assert seen.first_s == pytest.approx({"trunk": 1.5e-3, "streamed": 2e-3, "permanent": 4e-3})
    assert seen.later_s == pytest.approx({"trunk": 1.5e-3, "streamed": 4e-3, "permanent": 4e-3})
    assert seen.uses == {"streamed": 2, "permanent": 2}
    assert request_.usage.stall_s > 0


def test_the_host_never_waits_within_the_request(request_: Request) -> None:
    request_.run()
    assert not any("synchronize" in line for line in request_.api.log)
    assert not request_.api.happened, "the card has not run yet"


def test_the_rate_counts_copies_that_ended_after_the_request(request_: Request) -> None:
    request_.run()
    for usage in request_.usage.components.values():
        assert usage.arming_s == 0
    request_.api.run()
    request_.usage.components["net"].copied_bytes = 2 * 1024  # as the run counts them
    assert request_.probe.measured().copy_bytes_per_s == pytest.approx(1024 / (COPY_MS / 1000))


def test_activations_are_the_peak_beyond_what_the_engine_holds(request_: Request) -> None:
    measured = request_.measured()
    assert measured.components["net"].activation_bytes == 1000  # of the second pass
    assert measured.peak_bytes == request_.usage.peak_bytes == 1024 + 1000
    assert [line for line in request_.api.log if line.startswith("reset peak")]


def test_the_request_lasts_from_its_first_to_its_last_moment(request_: Request) -> None:
    stalls_ms = request_.measured().seconds * 1e3 - (7.5 + 16) - (9.5 + 16)
    assert 0 < stalls_ms <= 2 * COPY_MS


def timing_events(api: FakeTorch) -> set[str]:
    return {line.rpartition(" ")[2] for line in api.log if "record timing" in line}


def test_timing_events_are_used_again_once_they_were_read(request_: Request) -> None:
    request_.measured()
    made = timing_events(request_.api)
    request_.probe = Probe(request_.card, "")
    request_.measured()
    assert timing_events(request_.api) == made


def test_an_unfinished_request_teaches_nothing(request_: Request) -> None:
    request_.probe.request_begins(request_.usage)
    request_.probe.request_is_over(finished=False)
    with pytest.raises(StateError, match="its request failed"):
        request_.probe.measured()
