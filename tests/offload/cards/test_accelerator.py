"""The accelerator card asks torch for exactly what the run protocol needs, and for no more."""

import pytest
import torch

from offload.cards import accelerator
from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import COMPUTE, COPY, Event
from offload.cards.device_memory import CONTEXT_BYTES, slack_bytes
from offload.errors import CardError, OrderError, StateError
from offload.facts import CardFacts
from tests.offload.cards.fake_device import FakeTorch

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def api() -> FakeTorch:
    return FakeTorch()


@pytest.fixture
def card(api) -> AcceleratorCard:
    return AcceleratorCard("cuda:0", api=api)


def borne(card: AcceleratorCard, num_bytes: int) -> torch.Tensor:
    memory = card.allocate(num_bytes, "net/forward")
    born = card.event("born")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    return memory


def sent(card: AcceleratorCard, memory: torch.Tensor, source: torch.Tensor) -> Event:
    card.copy(memory, source, "blocks.0", charge_to="net")
    ready = card.event("ready")
    card.record(ready, COPY)
    return ready


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


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


class Leaving(AcceleratorCard):
    """Leaves out every wait whose event's name starts so."""

    without = "nothing"

    def _wait(self, event: Event, stream: str, charge_to: str) -> None:
        if not event.name.startswith(self.without):
            super()._wait(event, stream, charge_to)


def three_layers_in_one_place(card: AcceleratorCard, api: FakeTorch, seed: int) -> list[int]:
    """Stream three layers through one place, the host far ahead; returns what the kernels read.

    The place is memory that a kernel queued earlier still writes to, and goes to another owner
    right after the end; the last copy is one that nobody reads.
    """
    read: list[int] = []
    memory = card.allocate(256, "net/streamed")
    api.launch(5, lambda: plain(memory).fill_(99))  # the memory's last owner, still queued
    born, free, last = card.event("born"), card.event("free"), card.event("last_copy")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    for layer in range(4):
        if layer:
            card.wait(free, COPY)
        source = torch.full((256,), layer, dtype=torch.uint8)
        card.copy(memory, source, f"blocks.{layer}", charge_to="net")
        ready = card.event("ready")
        card.record(ready, COPY)
        card.record(last, COPY)
        if layer < 3:
            card.wait(ready, COMPUTE)
            api.launch(1, lambda: read.append(int(plain(memory)[7])))
            card.record(free, COMPUTE)
    card.wait(last, COMPUTE)
    card.release(memory)
    api.launch(1, lambda: plain(memory).fill_(77))  # its next owner
    api.launch(1, lambda: read.append(int(plain(memory)[7])))
    api.run(seed)
    return read


class TestRaces:
    """On streams that run late and in any order, as on a card."""

    def test_the_protocol_reads_the_right_bytes_in_every_order_of_the_streams(self, api):
        card = AcceleratorCard("cuda:0", api=api, check_order=True)
        for seed in range(50):
            assert three_layers_in_one_place(card, api, seed) == [0, 1, 2, 77]

    @pytest.mark.parametrize("without", ["born", "free", "ready", "last_copy"])
    def test_each_wait_that_is_left_out_is_seen_to_break_it(self, api, without):
        card = Leaving("cuda:0", api=api)
        card.without = without
        runs = [three_layers_in_one_place(card, api, seed) for seed in range(50)]
        assert any(run != [0, 1, 2, 77] for run in runs)


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


def probe_of(api: FakeTorch, free: int):
    facts = CardFacts(name="H", memory_bytes=api.total, free_bytes=free, uuid="GPU-1")
    return lambda: facts


class TestFacts:
    def test_before_a_context_the_probe_tells_and_a_context_is_set_aside(self, api):
        card = AcceleratorCard("cuda:0", api=api, probe=probe_of(api, 22 * GIB))
        facts = card.facts()
        assert (facts.name, facts.uuid, facts.free_bytes) == ("H", "GPU-1", 22 * GIB)
        assert facts.reserve_bytes == CONTEXT_BYTES + slack_bytes(24 * GIB)
        assert not api.initialized

    def test_with_a_context_the_driver_tells_and_the_own_cache_is_free(self, api):
        card = AcceleratorCard("cuda:0", api=api, probe=probe_of(api, 22 * GIB))
        card.allocate(256, "net/permanent")
        api.stats = {
            "allocated_bytes.all.current": 3 * GIB,
            "reserved_bytes.all.current": 5 * GIB,
            "allocated_bytes.all.peak": 4 * GIB,
        }
        facts, usage = card.facts(), card.usage()
        assert facts.free_bytes == 20 * GIB + 2 * GIB
        assert facts.reserve_bytes == card.reserve_bytes == slack_bytes(24 * GIB)
        assert (usage.allocated_bytes, usage.reserved_bytes) == (3 * GIB, 5 * GIB)
        assert (usage.peak_bytes, usage.memory_bytes) == (4 * GIB, 24 * GIB)

    def test_without_a_probe_the_driver_names_the_card(self, card):
        facts = card.facts()
        assert (facts.name, facts.memory_bytes, facts.free_bytes) == (
            "Fake cuda",
            24 * GIB,
            20 * GIB,
        )

    @pytest.mark.parametrize(
        ("total", "slack"), [(8 * GIB, 256 * MIB), (100 * GIB, 100 * GIB // 50)]
    )
    def test_slack_is_two_percent_and_at_least_a_quarter_of_a_gib(self, total, slack):
        assert slack_bytes(total) == slack

    def test_a_driver_that_does_not_tell_is_worked_around(self):
        api = FakeTorch(kind="xpu")
        api.tells_memory = False
        api.stats = {"reserved_bytes.all.current": 4 * GIB, "allocated_bytes.all.current": GIB}
        card = AcceleratorCard("xpu", api=api)
        assert card.facts().free_bytes == 24 * GIB - GIB
        assert card.pinner is None

    def test_an_older_torch_is_asked_through_the_device_module(self, api, card):
        del api.accelerator.get_memory_info
        assert card.facts().free_bytes == 20 * GIB

    def test_a_device_without_a_choice_of_allocators_is_fine(self, api, card):
        del api.module.get_allocator_backend
        assert card.allocate(256, "net/forward").numel() == 256

    def test_a_staging_buffer_is_page_locked_and_may_be_written_in_any_mode(self, api, card):
        with torch.inference_mode():
            buffer = card.staging(4096)
        assert api.log == ["pin 4096"]
        assert not buffer.is_inference()
        assert buffer.shape == (4096,)

    def test_memory_is_page_locked_by_the_cards_own_runtime(self, api, card):
        api.cuda = api.module
        api.cuda.init = lambda: None
        api.version = type("version", (), {"hip": None})
        api.__file__ = "/nowhere/torch/__init__.py"
        with pytest.raises(OSError, match=r"/nowhere/torch/lib/libc10_cuda\.so"):
            card.pinner.register(0, 4096)


class TestSmallerCard:
    def test_it_has_what_the_cap_leaves_and_the_allocator_is_held_to_that(self, api):
        """24 GiB with 2 GiB of others and 1 GiB of context, played as 8."""
        card = AcceleratorCard(
            "cuda:0", api=api, memory_bytes=8 * GIB, probe=probe_of(api, 22 * GIB)
        )
        assert card.facts().free_bytes == card.memory_bytes == 8 * GIB
        api.free = 24 * GIB - 2 * GIB - 1 * GIB
        card.allocate(256, "net/permanent")
        assert api.fraction == pytest.approx((8 - 1) / 24)
        api.free -= 3 * GIB
        api.stats = {
            "allocated_bytes.all.current": 2 * GIB,
            "reserved_bytes.all.current": 3 * GIB,
        }
        assert card.facts().free_bytes == 8 * GIB - 1 * GIB - 2 * GIB
        assert card.facts().reserve_bytes == slack_bytes(8 * GIB)

    def test_a_full_real_card_leaves_less_than_the_cap(self, api):
        card = AcceleratorCard("cuda:0", api=api, memory_bytes=8 * GIB)
        api.free = GIB
        assert card.facts().free_bytes <= GIB

    def test_a_cap_above_the_card_is_the_card(self, api):
        card = AcceleratorCard(
            "cuda:0", api=api, memory_bytes=99 * GIB, probe=probe_of(api, 22 * GIB)
        )
        assert card.memory_bytes == 24 * GIB

    def test_lifting_the_cap_gives_the_card_back(self, api):
        card = AcceleratorCard("cuda:0", api=api, memory_bytes=8 * GIB)
        card.allocate(256, "net/permanent")
        card.lift_cap()
        assert api.fraction == 1.0
        assert card.memory_bytes == 24 * GIB
        assert card.facts().free_bytes == 20 * GIB
