"""The simulated card's memory and facts: a capacity that raises, poison, a true ledger."""

import gc

import pytest
import torch

from offload.cards.simulated import SimulatedOutOfMemory
from offload.errors import CardError, OrderError, StateError
from tests.offload.cards.simulated_kit import MIB, bytes_of, make, place


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
