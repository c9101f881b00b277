"""The order checker: host order is no edge, events are; every wait that is missing is seen."""

import pytest

from offload.cards import order as order_module
from offload.cards.order import OrderChecker
from offload.errors import OrderError
from tests.offload.cards.points import Point, span


@pytest.fixture
def order() -> OrderChecker:
    return OrderChecker()


def hand_over(order: OrderChecker, first: str, then: str) -> None:
    event = Point()
    order.record(event, first)
    order.wait(event, then)


class TestPairs:
    def test_host_order_is_no_edge(self, order):
        order.alloc(span(0, 64), "compute", "net/forward")
        with pytest.raises(OrderError) as caught:
            order.write(span(0, 64), "copy", "blocks.0")
        for said in ("compute stream allocates net/forward", "copy stream writes blocks.0"):
            assert said in str(caught.value)
        assert "compute -> copy" in str(caught.value)

    def test_a_recorded_and_awaited_event_is_an_edge(self, order):
        order.alloc(span(0, 64), "compute", "net/forward")
        hand_over(order, "compute", "copy")
        order.write(span(0, 64), "copy", "blocks.0")
        hand_over(order, "copy", "compute")
        order.read(span(0, 64), "compute", "blocks.0")

    def test_an_event_recorded_before_the_access_does_not_order_it(self, order):
        early = Point()
        order.record(early, "copy")
        order.write(span(0, 64), "copy", "blocks.0")
        order.wait(early, "compute")
        with pytest.raises(OrderError, match="copy -> compute"):
            order.read(span(0, 64), "compute", "blocks.0")

    def test_a_wait_takes_the_record_at_the_call(self, order):
        event = Point()
        order.write(span(0, 64), "copy", "a")
        order.record(event, "copy")
        order.wait(event, "compute")
        order.write(span(64, 128), "copy", "b")
        order.record(event, "copy")
        order.read(span(0, 64), "compute", "a")
        with pytest.raises(OrderError, match="writes b"):
            order.read(span(64, 128), "compute", "b")

    def test_edges_go_through_a_third_stream(self, order):
        order.write(span(0, 64), "copy", "a")
        hand_over(order, "copy", "side")
        hand_over(order, "side", "compute")
        order.read(span(0, 64), "compute", "a")

    def test_two_reads_need_no_order(self, order):
        order.read(span(0, 64), "compute", "a")
        order.read(span(0, 64), "side", "a")

    def test_a_write_waits_for_the_readers_of_every_stream(self, order):
        order.read(span(0, 64), "compute", "a")
        order.read(span(0, 64), "side", "a")
        hand_over(order, "compute", "copy")
        with pytest.raises(OrderError, match="side -> copy"):
            order.write(span(0, 64), "copy", "b")

    def test_a_write_waits_for_the_last_read_not_the_first(self, order):
        order.read(span(0, 64), "compute", "entry")
        hand_over(order, "compute", "copy")
        order.read(span(0, 64), "compute", "exit")
        with pytest.raises(OrderError, match="reads exit"):
            order.write(span(0, 64), "copy", "b")

    @pytest.mark.parametrize(
        ("where", "overlaps"),
        [
            (span(0, 100), False),
            (span(0, 101), True),
            (span(199, 300), True),
            (span(200, 300), False),
            (span(120, 130), True),
            (span(0, 300), True),
        ],
    )
    def test_ranges_meet_where_they_share_a_byte(self, order, where, overlaps):
        order.write(span(100, 200), "copy", "a")
        if overlaps:
            with pytest.raises(OrderError):
                order.read(where, "compute", "b")
        else:
            order.read(where, "compute", "b")

    def test_each_part_of_a_range_keeps_its_own_history(self, order):
        order.write(span(0, 100), "copy", "a")
        hand_over(order, "copy", "compute")
        order.write(span(40, 60), "copy", "late")
        order.read(span(0, 40), "compute", "a")
        order.read(span(60, 100), "compute", "a")
        with pytest.raises(OrderError, match="writes late"):
            order.read(span(59, 61), "compute", "a")

    def test_nothing_happens_in_no_bytes(self, order):
        empty = span(8, 8)
        order.alloc(empty, "compute", "empty")
        order.write(empty, "copy", "empty")
        order.read(empty, "side", "empty")
        order.free(empty, "compute")


class TestHost:
    def test_what_the_host_waited_for_orders_every_later_call(self, order):
        event = Point()
        order.write(span(0, 64), "copy", "a")
        order.record(event, "copy")
        order.host_wait(event)
        order.read(span(0, 64), "compute", "a")
        order.read(span(0, 64), "never seen before", "a")

    @pytest.mark.parametrize("waiter", ["stream", "host"])
    def test_a_wait_for_an_event_never_recorded_is_an_error(self, order, waiter):
        wait = order.host_wait if waiter == "host" else lambda event: order.wait(event, "compute")
        with pytest.raises(OrderError, match=r"ready blocks\.3.*never recorded"):
            wait(Point("ready blocks.3"))


class TestLifetimes:
    def test_freeing_waits_for_copies_that_nobody_read(self, order):
        order.alloc(span(0, 64), "compute", "net/forward")
        hand_over(order, "compute", "copy")
        order.write(span(0, 64), "copy", "blocks.0")
        with pytest.raises(OrderError, match="frees net/forward"):
            order.free(span(0, 64), "compute")

    def test_a_free_is_remembered_by_the_next_owner_on_another_stream(self, order):
        order.alloc(span(0, 64), "compute", "old")
        hand_over(order, "compute", "copy")
        order.free(span(0, 64), "compute")
        with pytest.raises(OrderError, match="'compute stream frees old'"):
            order.alloc(span(0, 32), "copy", "new")

    def test_memory_is_handed_out_again_on_its_own_stream_without_an_event(self, order):
        for _ in range(3):
            order.alloc(span(0, 64), "compute", "activation")
            order.read(span(0, 64), "compute", "activation")
            order.free(span(0, 64), "compute")

    @pytest.mark.parametrize("access", ["read", "write"])
    def test_freed_memory_is_used_by_nobody_however_well_ordered(self, order, access):
        order.alloc(span(0, 64), "compute", "net/forward")
        order.free(span(0, 64), "compute")
        with pytest.raises(OrderError, match="which is free"):
            getattr(order, access)(span(32, 48), "compute", "blocks.0")

    def test_what_was_allocated_and_not_freed_is_counted(self, order):
        order.alloc(span(0, 64), "compute", "a")
        order.alloc(span(64, 128), "compute", "b")
        order.free(span(0, 64), "compute")
        assert order.num_allocations == 1

    def test_an_allocation_is_freed_once(self, order):
        order.alloc(span(0, 64), "compute", "net/forward")
        order.free(span(0, 64), "compute")
        with pytest.raises(OrderError, match="not allocated"):
            order.free(span(0, 64), "compute")


class TestLongRuns:
    def test_one_slot_refilled_for_ever_is_one_interval(self, order):
        order.alloc(span(0, 1000), "compute", "ring")
        hand_over(order, "compute", "copy")
        for _ in range(200):
            for start in (0, 500):
                order.write(span(start, start + 500), "copy", "u")
                hand_over(order, "copy", "compute")
                order.read(span(start, start + 500), "compute", "u")
                hand_over(order, "compute", "copy")
        assert order.num_intervals == 2

    def test_freed_memory_that_every_stream_knows_of_is_forgotten(self, order, monkeypatch):
        monkeypatch.setattr(order_module, "PRUNE_ABOVE", 8)
        for index in range(100):
            where = span(index * 100, index * 100 + 50)
            order.alloc(where, "compute", "activation")
            order.free(where, "compute")
            hand_over(order, "compute", "copy")
        assert order.num_intervals <= 8 + 1

    def test_freed_memory_that_a_stream_has_yet_to_hear_of_is_not(self, order, monkeypatch):
        monkeypatch.setattr(order_module, "PRUNE_ABOVE", 0)
        hand_over(order, "compute", "copy")
        order.alloc(span(0, 50), "compute", "old")
        order.alloc(span(100, 150), "compute", "live")
        order.free(span(0, 50), "compute")
        with pytest.raises(OrderError, match="frees old"):
            order.alloc(span(0, 50), "copy", "new")
        assert order.num_intervals == 2
