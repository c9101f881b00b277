"""The accelerator card asks torch for exactly what the run protocol needs, and for no more."""

import pytest
import torch

from offload.cards import accelerator
from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import COMPUTE
from offload.errors import CardError, OrderError, StateError
from tests.offload.cards.accelerator_kit import borne, sent
from tests.offload.cards.fake_device import FakeTorch


@pytest.fixture
def api() -> FakeTorch:
    return FakeTorch()


@pytest.fixture
def card(api) -> AcceleratorCard:
    return AcceleratorCard("cuda:0", api=api)


class TestStreams:
    def test_nothing_touches_the_device_before_the_first_use(self, api):
        AcceleratorCard("cuda:0", api=api)
        assert api.log == []
        assert [stream.name for stream in api.streams] == ["default"]

    def test_one_copy_stream_of_high_priority_serves_every_card_of_the_device(self, api):
        for _ in range(3):
            card = AcceleratorCard("cuda:0", api=api)
            sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        made = [stream for stream in api.streams if stream.name != "default"]
        assert [stream.priority for stream in made] == [-1]

    def test_a_copy_is_queued_on_the_copy_stream_behind_the_birth_of_its_memory(self, api, card):
        sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        assert [line for line in api.log if "timing" not in line] == [
            "default: empty 256",
            "default: record e0",
            "copy1: wait e0",
            "copy1: copy 256",
            "copy1: record e3",
        ]

    def test_a_wait_orders_one_stream_behind_one_event(self, api, card):
        ready = sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        del api.log[:]
        card.wait(ready, COMPUTE)
        assert api.log == [f"default: wait {ready.handle.name}"]

    def test_an_event_never_recorded_is_refused(self, card):
        with pytest.raises(StateError, match="never recorded"):
            card.wait(card.event("ready"), COMPUTE)

    def test_the_compute_stream_is_the_current_one_and_a_change_is_ordered(self, api, card):
        first = card.event("first")
        card.record(first, COMPUTE)
        side = api.current = api.make_stream("side")
        del api.log[:]
        second = card.event("second")
        card.record(second, COMPUTE)
        handover = api.log[0].split()[-1]
        assert api.log == [
            f"default: record {handover}",
            f"side: wait {handover}",
            f"side: record {second.handle.name}",
        ]
        assert api.current is side

    def test_memory_goes_back_to_its_pool_behind_the_stream_that_used_it_last(self, api, card):
        memory = borne(card, 256)
        api.current = api.make_stream("side")
        del api.log[:]
        card.release(memory)
        edges = [line.split(": ")[0] + " " + line.split(": ")[1].split()[0] for line in api.log]
        assert edges == ["default record", "side wait", "side record", "default wait"]

    def test_memory_released_on_its_own_stream_needs_nothing(self, api, card):
        memory = borne(card, 256)
        del api.log[:]
        card.release(memory)
        assert api.log == []

    def test_the_owner_threads_device_is_set_at_first_use(self, api):
        card = AcceleratorCard("cuda:1", api=api)
        assert api.current_index == 0
        card.allocate(256, "net/forward")
        assert api.current_index == 1
        assert card.device == torch.device("cuda", 1)

    def test_declared_computation_is_for_virtual_clocks_only(self, api, card):
        card.compute(5.0)
        assert api.log == []

    def test_capture_is_seen(self, api, card):
        assert not card.is_capturing()
        api.capturing = True
        assert card.is_capturing()

    def test_memory_made_under_inference_mode_is_no_inference_tensor(self, card):
        with torch.inference_mode():
            assert not card.allocate(256, "net/forward").is_inference()

    def test_the_order_checker_hears_of_everything(self, api):
        card = AcceleratorCard("cuda:0", api=api, check_order=True)
        memory = card.allocate(256, "net/forward")
        with pytest.raises(OrderError, match="compute -> copy"):
            card.copy(memory, torch.zeros(256, dtype=torch.uint8), "blocks.0", charge_to="net")

    def test_the_allocator_whose_figures_read_zero_is_refused(self, api, card):
        api.backend = "cudaMallocAsync"
        with pytest.raises(CardError, match="cudaMallocAsync"):
            card.allocate(256, "net/forward")


class TestTimings:
    def test_a_copy_that_was_there_in_time_is_neither_waited_for_nor_measured(self, api, card):
        ready = sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        api.run()
        del api.log[:]
        card.wait(ready, COMPUTE, charge_to="net")
        assert api.log == []
        assert card.take_timings()["net"].stall_s == 0

    def test_a_stall_is_the_time_for_which_the_compute_stream_stood_still(self, api, card):
        api.bytes_per_ms = 100
        ready = sent(card, borne(card, 1000), torch.zeros(1000, dtype=torch.uint8))
        api.launch(3)
        card.wait(ready, COMPUTE, charge_to="net")
        api.run()
        timing = card.take_timings()["net"]
        assert timing.copied_bytes == 1000
        assert timing.copy_s == pytest.approx(0.010)
        assert timing.stall_s == pytest.approx(0.010 - 0.003)

    def test_what_has_not_passed_is_told_the_next_time(self, api, card):
        sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        assert card.take_timings()["net"].copy_s == 0
        api.run()
        assert card.take_timings()["net"].copy_s == pytest.approx(256 / 1e6 / 1000)
        assert card.take_timings() == {}

    def test_timing_events_are_used_again_only_after_they_were_read(self, api, card):
        memory, source = borne(card, 256), torch.zeros(256, dtype=torch.uint8)

        def timing_events() -> set[str]:
            return {line.split()[-1] for line in api.log if "timing" in line}

        for _ in range(3):
            sent(card, memory, source)
        assert len(timing_events()) == 6
        api.run()
        card.take_timings()
        for _ in range(3):
            sent(card, memory, source)
        assert len(timing_events()) == 6

    def test_the_link_is_as_fast_as_measured_once_enough_was_copied(self, api, card):
        assert card.facts().copy_bytes_per_s == accelerator.ASSUMED_BYTES_PER_S
        api.bytes_per_ms = 4e6
        memory = borne(card, accelerator.ENOUGH_BYTES)
        sent(card, memory, torch.zeros(accelerator.ENOUGH_BYTES, dtype=torch.uint8))
        api.run()
        card.take_timings()
        assert card.facts().copy_bytes_per_s == pytest.approx(4e9)


class TestHostWaits:
    def test_a_query_tells_without_waiting(self, api, card):
        ready = sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        assert not card.passed(ready)
        api.run()
        assert card.passed(ready)

    def test_the_host_waits_by_asking_again(self, api, card, monkeypatch):
        ready = sent(card, borne(card, 256), torch.zeros(256, dtype=torch.uint8))
        slept: list[float] = []
        monkeypatch.setattr(accelerator.time, "sleep", lambda s: (slept.append(s), api.run()))
        card.host_wait(ready)
        assert slept == [accelerator.POLL_S]

    def test_the_device_is_waited_for_and_emptied_by_its_own_index(self, api):
        card = AcceleratorCard("cuda:1", api=api)
        card.synchronize()
        card.reset_peak()
        card.empty_cache()
        assert api.log == ["synchronize cuda:1", "reset peak cuda:1", "empty cache of 1"]
        assert api.current_index == 0
