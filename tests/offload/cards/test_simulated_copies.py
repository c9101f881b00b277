"""The simulated card's copies: never early, in order, failing where a test says so."""

import pytest
import torch

from offload.cards.base import COMPUTE, COPY
from offload.cards.simulated import SimulatedOutOfMemory
from offload.errors import OrderError
from tests.offload.cards.simulated_kit import KINDS, bytes_of, make, place, send


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
