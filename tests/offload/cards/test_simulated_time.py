"""The simulated card's virtual clock and its reports to the order checker."""

import pytest

from offload.cards.base import COMPUTE, COPY
from offload.errors import OrderError, StateError
from tests.offload.cards.simulated_kit import bytes_of, make, place, send


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
