"""The simulated card keeps a real card's promises: capacity, poison, late copies, a true ledger."""

import gc

import pytest
import torch

from offload.cards.base import COMPUTE, COPY
from offload.cards.simulated import SimulatedCard, SimulatedOutOfMemory
from offload.errors import CardError, OrderError, StateError

MIB = 1 << 20
KINDS = [
    pytest.param({"clock": "wall"}, id="wall"),
    pytest.param({"clock": "virtual"}, id="virtual"),
    pytest.param({"clock": "wall", "threaded": True}, id="threaded"),
]


def make(**options) -> SimulatedCard:
    return SimulatedCard(**{"memory_bytes": MIB, "bytes_per_s": 1e9, "clock": "virtual"} | options)


def bytes_of(num_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, generator=generator)


def place(card: SimulatedCard, num_bytes: int, label: str = "net/forward") -> torch.Tensor:
    """Memory that the copy stream may write to."""
    memory = card.allocate(num_bytes, label)
    born = card.event("born")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    return memory


def send(card: SimulatedCard, place: torch.Tensor, source: torch.Tensor, unit: str = "blocks.0"):
    card.copy(place, source, unit, charge_to="net")
    ready = card.event(f"ready {unit}")
    card.record(ready, COPY)
    return ready


class TestMemory:
    def test_memory_is_aligned_at_the_start_of_its_storage_and_poisoned(self):
        for num_bytes in (1, 255, 257, 4097, 100_000):
            memory = make().allocate(num_bytes, "net/forward")
            assert memory.shape == (num_bytes,)
            assert memory.dtype == torch.uint8
            assert memory.data_ptr() % 256 == 0
            assert memory.storage_offset() == 0
            assert bool((memory == 0xFF).all())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    def test_poison_is_nan_in_every_float_type(self, dtype):
        assert bool(make().allocate(64, "net/forward").view(dtype).isnan().all())

    def test_memory_made_under_inference_mode_is_no_inference_tensor(self):
        with torch.inference_mode():
            assert not make().allocate(64, "net/forward").is_inference()

    def test_the_last_byte_fits_and_one_more_does_not(self):
        card = make(memory_bytes=1024)
        held = card.allocate(768, "a")
        kept = card.allocate(256, "b")
        with pytest.raises(SimulatedOutOfMemory):
            card.allocate(1, "c")
        assert card.usage().allocated_bytes == held.numel() + kept.numel()

    def test_out_of_memory_is_torchs_and_ours_and_tells_who_holds_what(self):
        card = make(memory_bytes=1024, used_bytes=256, name="mini")
        held = card.allocate(512, "text_encoder/permanent")
        for kind in (torch.OutOfMemoryError, CardError):
            with pytest.raises(kind) as caught:
                card.allocate(300, "vae/forward")
        said = str(caught.value)
        for part in ("mini", "300 B asked for vae/forward", "256 B free", "text_encoder/permanent"):
            assert part in said
        card.release(held)

    def test_what_other_processes_hold_cannot_be_had_and_may_change(self):
        card = make(memory_bytes=1024, used_bytes=768)
        with pytest.raises(SimulatedOutOfMemory):
            card.allocate(512, "a")
        card.used_bytes = 0
        assert card.allocate(512, "a").numel() == 512
        card.used_bytes = 1024
        assert card.facts().free_bytes == 0

    def test_the_ledger_counts_by_label_in_aligned_bytes(self):
        card = make()
        kept = [card.allocate(n, label) for n, label in ((300, "a"), (256, "a"), (1, "b"))]
        assert card.ledger() == {"a": 512 + 256, "b": 256}
        assert card.usage().allocated_bytes == 1024
        assert len(kept) == 3

    def test_bytes_stay_counted_while_any_view_lives(self):
        card = make()
        memory = card.allocate(4096, "net/forward")
        view = torch.empty(0).set_(memory.untyped_storage(), 8, (4,), (1,))
        card.release(memory)
        del memory
        gc.collect()
        assert card.usage().allocated_bytes == 4096
        del view
        assert card.usage().allocated_bytes == 0
        assert card.ledger() == {}

    def test_a_view_of_released_memory_reads_nan(self):
        card = make()
        memory = card.allocate(4096, "net/forward").fill_(0)
        view = memory.view(torch.float32)[3:7]
        card.release(memory)
        assert bool(view.isnan().all())

    @pytest.mark.parametrize("check_order", [True, False])
    def test_memory_is_released_once(self, check_order):
        card = make(check_order=check_order)
        memory = card.allocate(4096, "net/forward")
        card.release(memory)
        with pytest.raises((OrderError, StateError)):
            card.release(memory)

    def test_memory_of_another_card_is_not_released(self):
        with pytest.raises(StateError, match="another card"):
            make(check_order=False).release(make().allocate(4096, "net/forward"))

    def test_the_peak_is_the_most_that_was_held_since_it_was_reset(self):
        card = make()
        first = card.allocate(1024, "a")
        second = card.allocate(2048, "b")
        card.release(second)
        del second
        assert card.usage().peak_bytes == 3072
        card.reset_peak()
        assert card.usage().peak_bytes == 1024
        card.release(first)

    def test_nothing_of_memory_outlives_its_last_view(self):
        """Two hundred times the card's size goes through it."""
        card = make()
        for _ in range(200):
            memory = place(card, MIB)
            card.release(memory)
            del memory
        assert card.usage().allocated_bytes == 0


class TestCopies:
    @pytest.mark.parametrize("kind", KINDS)
    def test_bytes_are_poison_until_their_event_and_right_after_it(self, kind):
        card = make(bytes_per_s=1e6, **kind)
        source = bytes_of(100_000)
        memory = place(card, 100_000).fill_(0)
        ready = send(card, memory, source)
        assert not card.passed(ready)
        assert bool((memory == 0xFF).all())
        card.wait(ready, COMPUTE)
        assert torch.equal(memory, source)
        assert card.passed(ready)
        assert card.num_copies_in_flight == 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_copy_takes_its_bytes_over_the_rate_and_is_never_early(self, kind):
        card = make(bytes_per_s=1e7, **kind)
        memory = place(card, 100_000)
        began = card.now()
        ready = send(card, memory, bytes_of(100_000))
        asked = card.now()
        card.wait(ready, COMPUTE, charge_to="net")
        assert card.now() - began >= 0.01
        timing = card.take_timings()["net"]
        assert timing.copied_bytes == 100_000
        assert timing.copy_s == pytest.approx(0.01)
        assert 0.01 - (asked - began) <= timing.stall_s <= card.now() - asked
        assert card.take_timings() == {}

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_wait_lands_what_was_issued_before_its_record_and_no_more(self, kind):
        card = make(bytes_per_s=1e6, **kind)
        memory, source = place(card, 200_000), bytes_of(200_000)
        first = send(card, memory[:1000], source[:1000])
        second = send(card, memory[1000:], source[1000:])
        card.wait(first, COMPUTE)
        assert torch.equal(memory[:1000], source[:1000])
        assert bool((memory[1000:] == 0xFF).all())
        card.host_wait(second)
        assert torch.equal(memory, source)

    @pytest.mark.parametrize("kind", KINDS)
    def test_copies_into_one_place_land_in_the_order_of_issue(self, kind):
        card = make(**kind)
        memory = place(card, 512)
        old, new = bytes_of(512, seed=1), bytes_of(512, seed=2)
        send(card, memory, old)
        card.wait(send(card, memory, new), COMPUTE)
        assert torch.equal(memory, new)

    def test_a_host_that_asks_after_the_deadline_finds_the_bytes(self):
        card = make(clock="virtual", bytes_per_s=1e6)
        memory, source = place(card, 1000), bytes_of(1000)
        ready = send(card, memory, source)
        card.compute(0.000_999)
        assert not card.passed(ready)
        card.compute(0.000_002)
        assert card.passed(ready)
        assert torch.equal(memory, source)

    def test_synchronize_lands_everything(self):
        card = make()
        memory, source = place(card, 1000), bytes_of(1000)
        send(card, memory, source)
        card.synchronize()
        assert torch.equal(memory, source)

    @pytest.mark.parametrize("kind", KINDS)
    def test_copies_work_under_inference_mode(self, kind):
        card = make(**kind)
        source = bytes_of(1000)
        with torch.inference_mode():
            memory = place(card, 1000)
            card.wait(send(card, memory, source), COMPUTE)
            card.release(memory)
        assert not memory.is_inference()

    @pytest.mark.parametrize("check_order", [True, False])
    def test_memory_with_a_copy_on_its_way_is_not_released(self, check_order):
        card = make(check_order=check_order)
        memory = place(card, 2048)
        send(card, memory[256:512], bytes_of(256))
        with pytest.raises(OrderError):
            card.release(memory)

    def test_memory_is_released_while_copies_go_elsewhere(self):
        card = make()
        memory, other = card.allocate(256, "a"), place(card, 256, "b")
        send(card, other, bytes_of(256))
        card.release(memory)
        assert card.num_copies_in_flight == 1


class TestVirtualClock:
    def test_copies_follow_each_other_on_one_link(self):
        card = make(bytes_per_s=1e6)
        memory, source = place(card, 3000), bytes_of(3000)
        events = [send(card, memory[i : i + 1000], source[i : i + 1000]) for i in (0, 1000, 2000)]
        landed = []
        for event in events:
            card.wait(event, COMPUTE)
            landed.append(card.now())
        assert landed == pytest.approx([0.001, 0.002, 0.003])

    def test_a_copy_under_a_computation_costs_no_stall(self):
        card = make(bytes_per_s=1e6)
        ready = send(card, place(card, 1000), bytes_of(1000))
        card.compute(0.001)
        card.wait(ready, COMPUTE, charge_to="net")
        assert card.now() == pytest.approx(0.001)
        assert card.timing("net").stall_s == 0

    def test_a_late_copy_stalls_for_what_is_left_of_it(self):
        card = make(bytes_per_s=1e6)
        ready = send(card, place(card, 1000), bytes_of(1000))
        card.compute(0.000_4)
        card.wait(ready, COMPUTE, charge_to="net")
        assert card.timing("net").stall_s == pytest.approx(0.000_6)

    def test_an_idle_link_does_not_save_up_time(self):
        card = make(bytes_per_s=1e6)
        memory = place(card, 2000)
        send(card, memory[:1000], bytes_of(1000))
        card.compute(5.0)
        card.wait(send(card, memory[1000:], bytes_of(1000)), COMPUTE)
        assert card.now() == pytest.approx(5.001)

    def test_the_copy_stream_waits_for_an_event_without_holding_up_the_host(self):
        card = make(bytes_per_s=1e6)
        memory = place(card, 2000)
        first = send(card, memory[:1000], bytes_of(1000))
        card.wait(first, COPY)
        assert card.now() == 0.0

    @pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
    def test_two_places_keep_the_longer_of_link_and_computation_busy(self, ratio):
        """Twenty layers of 1 ms on the link: the time is the maximum, plus the first copy."""
        card = make(bytes_per_s=1e6)
        memory = place(card, 2000)
        places, source = [memory[:1000], memory[1000:]], bytes_of(1000)
        ready = [send(card, places[i], source, f"u{i}") for i in range(2)]
        free = [card.event("free 0"), card.event("free 1")]
        for layer in range(20):
            card.wait(ready[layer], COMPUTE)
            with card.reading(f"u{layer}", places[layer % 2]):
                card.compute(0.001 * ratio)
            card.record(free[layer % 2], COMPUTE)
            if layer + 2 < 20:
                card.wait(free[layer % 2], COPY)
                ready.append(send(card, places[layer % 2], source, f"u{layer + 2}"))
        longest = 0.020 * max(1.0, ratio)
        assert longest <= card.now() <= longest + 0.001 * (1 + min(1.0, ratio))


class TestOrder:
    """The card reports what it does; each hazard of the protocol is one missing call here."""

    def test_a_copy_before_the_memory_is_born_is_seen(self):
        card = make()
        memory = card.allocate(256, "net/forward")
        with pytest.raises(OrderError, match="compute -> copy"):
            card.copy(memory, bytes_of(256), "blocks.0", charge_to="net")

    def test_a_unit_read_before_it_is_ready_is_seen(self):
        card = make()
        memory = place(card, 256)
        send(card, memory, bytes_of(256))
        with pytest.raises(OrderError, match="copy -> compute"), card.reading("blocks.0", memory):
            pass

    def test_a_place_refilled_while_its_reader_runs_is_seen(self):
        card = make()
        memory = place(card, 256)
        card.wait(send(card, memory, bytes_of(256)), COMPUTE)
        with card.reading("blocks.0", memory):
            pass
        with pytest.raises(OrderError, match=r"reads blocks\.0"):
            card.copy(memory, bytes_of(256), "blocks.1", charge_to="net")

    def test_the_end_of_a_call_counts_not_its_start(self):
        card = make()
        memory = place(card, 256)
        card.wait(send(card, memory, bytes_of(256)), COMPUTE)
        early = card.event("free, too early")
        with card.reading("blocks.0", memory):
            card.record(early, COMPUTE)
        card.wait(early, COPY)
        with pytest.raises(OrderError, match=r"reads blocks\.0"):
            card.copy(memory, bytes_of(256), "blocks.1", charge_to="net")

    def test_a_wait_for_an_event_never_recorded_is_refused(self):
        card = make(check_order=False)
        with pytest.raises(StateError, match="never recorded"):
            card.wait(card.event("ready"), COMPUTE)
        with pytest.raises(StateError, match="never recorded"):
            card.host_wait(card.event("ready"))
        assert not card.passed(card.event("ready"))

    def test_a_query_that_says_yes_orders_the_host(self):
        card = make(bytes_per_s=1e6)
        memory = place(card, 1000)
        ready = send(card, memory, bytes_of(1000))
        card.compute(1.0)
        assert card.passed(ready)
        with card.reading("blocks.0", memory):
            pass


class TestFailures:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_waiter_of_a_failed_copy_raises_and_nobody_hangs(self, kind):
        card = make(**kind)
        memory, source = place(card, 768), bytes_of(768)
        card.fail_copy(OSError("the link broke"), after=1)
        first, second, third = (
            send(card, memory[i : i + 256], source[i : i + 256], f"u{i}") for i in (0, 256, 512)
        )
        last = card.event("last copy")
        card.record(last, COPY)
        card.wait(first, COMPUTE)
        for _ in range(2):
            with pytest.raises(OSError, match="the link broke"):
                card.wait(second, COMPUTE)
            with pytest.raises(OSError, match="the link broke"):
                card.host_wait(second)
        card.wait(third, COMPUTE)
        card.wait(last, COMPUTE)
        assert bool((memory[256:512] == 0xFF).all())
        card.release(memory)

    def test_a_failed_copy_that_nobody_waits_for_does_not_fail_the_end_of_the_run(self):
        card = make()
        memory, last = place(card, 256), card.event("last copy")
        card.fail_copy(OSError("the link broke"))
        send(card, memory, bytes_of(256))
        card.record(last, COPY)
        card.wait(last, COMPUTE)
        card.release(memory)

    def test_an_event_that_is_recorded_again_forgets_the_failure(self):
        card = make()
        memory, source = place(card, 256), bytes_of(256)
        card.fail_copy(OSError("the link broke"))
        ready = send(card, memory, source)
        with pytest.raises(OSError, match="the link broke"):
            card.wait(ready, COMPUTE)
        card.copy(memory, source, "blocks.0", charge_to="net")
        card.record(ready, COPY)
        card.wait(ready, COMPUTE)
        assert torch.equal(memory, source)

    def test_one_allocation_fails_on_purpose_after_so_many(self):
        card = make()
        card.fail_allocation_after(1)
        kept = card.allocate(256, "a")
        with pytest.raises(SimulatedOutOfMemory):
            card.allocate(256, "b")
        kept = card.allocate(256, "b")
        assert kept.numel() == 256


class TestFacts:
    def test_facts_follow_what_is_held(self):
        card = make(memory_bytes=4096, used_bytes=1024, reserve_bytes=512, name="mini")
        kept = card.allocate(2048, "a")
        facts = card.facts()
        assert (facts.name, facts.memory_bytes, facts.simulated) == ("mini", 4096, True)
        assert facts.free_bytes == 4096 - 1024 - kept.numel()
        assert (facts.reserve_bytes, facts.copy_bytes_per_s) == (512, 1e9)

    @pytest.mark.parametrize("options", [{"clock": "sun"}, {"clock": "virtual", "threaded": True}])
    def test_a_clock_that_cannot_be_is_refused(self, options):
        with pytest.raises(CardError, match="clock"):
            make(**options)

    def test_a_wall_clock_passes_by_itself(self):
        card = make(clock="wall")
        began = card.now()
        card.compute(1000.0)
        assert 0 <= card.now() - began < 10

    def test_it_is_never_captured_and_needs_no_page_locks(self):
        card = make()
        assert not card.is_capturing()
        assert card.pinner is None
        assert card.staging(4096).shape == (4096,)

    def test_without_the_checker_a_read_is_just_a_read(self):
        card = make(check_order=False)
        memory = card.allocate(256, "net/forward")
        with card.reading("blocks.0", memory):
            card.copy(memory, bytes_of(256), "blocks.0", charge_to="net")
        card.synchronize()

    def test_an_empty_cache_is_no_news(self):
        card = make()
        card.empty_cache()
        assert card.usage().reserved_bytes == card.usage().allocated_bytes == 0
