"""The order checker: host order is no edge, events are; every wait that is missing is seen."""

import random
from dataclasses import dataclass

import pytest

from offload.cards import order as order_module
from offload.cards.intervals import Range
from offload.cards.order import Clock, OrderChecker
from offload.errors import OrderError


@dataclass
class Point:
    """An event, as far as the checker cares."""

    name: str = "point"
    clock: Clock | None = None


def span(start: int, end: int) -> Range:
    return Range(start=start, num_bytes=end - start)


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


STREAMS = ("compute", "copy", "side")


def random_steps(rng: random.Random) -> list[tuple]:
    """Accesses of which most, not all, are handed over to the other streams by events."""
    steps: list[tuple] = []
    for _ in range(rng.randint(2, 14)):
        stream, event = rng.choice(STREAMS), rng.randint(0, 2)
        verb = "read" if rng.random() < 0.6 else "write"
        steps.append((verb, stream, rng.randint(0, 12), rng.randint(1, 6)))
        if rng.random() < 0.9:
            steps.append(("record", stream, event))
            heard = [other for other in STREAMS if rng.random() < 0.9]
            steps += [("wait", other, event) for other in heard]
        elif rng.random() < 0.3:
            steps.append(("host_wait", event))
    return steps


def happens_before(edges: dict[int, set[int]], first: int, then: int) -> bool:
    seen, todo = set(), [then]
    while todo:
        node = todo.pop()
        if node == first:
            return True
        if node not in seen:
            seen.add(node)
            todo.extend(edges[node])
    return False


def first_race(steps) -> int | None:
    """The oracle: keep every step for ever as a node, search the graph for each pair."""
    edges: dict[int, set[int]] = {}  # step -> steps just before it
    last: dict[str, int] = {}
    recorded: dict[int, int] = {}
    accesses, host = [], set()
    for index, step in enumerate(steps):
        verb, *rest = step
        edges[index] = set(host)
        if verb == "host_wait":
            if rest[0] in recorded:
                host.add(recorded[rest[0]])
            continue
        stream = rest[0]
        if stream in last:
            edges[index].add(last[stream])
        last[stream] = index
        if verb == "record":
            recorded[rest[1]] = index
        elif verb == "wait":
            edges[index] |= {recorded[rest[1]]} if rest[1] in recorded else set()
        else:
            start, end = rest[1], rest[1] + rest[2]
            for earlier, writes, low, high in accesses:
                conflict = low < end and start < high and (writes or verb == "write")
                if conflict and not happens_before(edges, earlier, index):
                    return index
            accesses.append((index, verb == "write", start, end))
    return None


def first_error(steps) -> int | None:
    order, events = OrderChecker(), {}
    for index, (verb, *rest) in enumerate(steps):
        try:
            if verb in ("read", "write"):
                getattr(order, verb)(span(rest[1], rest[1] + rest[2]), rest[0], f"step {index}")
            elif verb == "record":
                order.record(events.setdefault(rest[1], Point()), rest[0])
            elif verb == "wait" and rest[1] in events:
                order.wait(events[rest[1]], rest[0])
            elif verb == "host_wait" and rest[0] in events:
                order.host_wait(events[rest[0]])
        except OrderError:
            return index
    return None


def test_it_finds_the_race_that_a_search_over_the_whole_history_finds():
    found = []
    for seed in range(3000):
        steps = random_steps(random.Random(seed))
        found.append(first_error(steps))
        assert found[-1] == first_race(steps), f"seed {seed}"
    assert 600 < found.count(None) < 2400  # both kinds were tried often


class Run:
    """The run protocol as written down, on bare addresses; ``without`` leaves one wait out."""

    def __init__(self, order: OrderChecker, rng: random.Random, without: str) -> None:
        self.order, self.rng, self.without = order, rng, without
        self.waiting: dict[int, Point] = {}  # unit -> ready, until compute has waited for it
        self.last_copy = Point("last copy")

    def wait(self, name: str, event: Point, stream: str) -> None:
        if name != self.without and event.clock is not None:
            self.order.wait(event, stream)

    def copy(self, unit: int, where: Range) -> None:
        self.order.write(where, "copy", f"unit {unit}")
        self.waiting[unit] = Point(f"ready {unit}")
        self.order.record(self.waiting[unit], "copy")
        self.order.record(self.last_copy, "copy")

    def call(self, unit: int, where: Range) -> None:
        if unit in self.waiting:
            self.wait("ready", self.waiting.pop(unit), "compute")
        self.order.read(where, "compute", f"unit {unit}")
        activation = span(self.end, self.end + self.rng.randint(1, 500))
        self.order.alloc(activation, "compute", "activation")
        self.order.read(where, "compute", f"unit {unit}")
        self.order.free(activation, "compute")

    def perform(self, num_forward: int, num_streamed: int, num_calls: int) -> None:
        """Forward units of 50 bytes, two window places of 100 bytes, one allocation."""
        base = self.rng.choice([0, 300, 600])  # often memory that activations have just left
        memory = span(base, base + num_forward * 50 + 200)
        self.end = memory.end
        self.order.alloc(memory, "compute", "run")
        born = Point("born")
        self.order.record(born, "compute")
        self.wait("born", born, "copy")
        forward = [span(base + 50 * i, base + 50 * i + 50) for i in range(num_forward)]
        for unit, where in enumerate(forward):
            self.copy(unit, where)
        window = [span(memory.end - 200, memory.end - 100), span(memory.end - 100, memory.end)]
        free = [Point("free 0"), Point("free 1")]
        for unit in range(min(2, num_streamed)):
            self.copy(1000 + unit, window[unit])
        for unit in range(num_calls):
            if unit < num_forward:
                self.call(unit, forward[unit])
                continue
            turn = unit - num_forward
            self.call(1000 + turn, window[turn % 2])
            self.order.record(free[turn % 2], "compute")
            if turn + 2 < num_streamed:
                self.wait("free", free[turn % 2], "copy")
                self.copy(1000 + turn + 2, window[turn % 2])
        self.wait("last_copy", self.last_copy, "compute")
        self.order.free(memory, "compute")


def three_runs(seed: int, without: str = "") -> None:
    rng, order = random.Random(seed), OrderChecker()
    for _ in range(3):
        num_forward, num_streamed = rng.randint(0, 4), rng.randint(3, 6)
        whole = num_forward + num_streamed
        aborted = rng.random() < 0.4
        Run(order, rng, without).perform(
            num_forward, num_streamed, rng.randint(0, whole - 1) if aborted else whole
        )


def test_the_protocol_has_no_race():
    for seed in range(400):
        three_runs(seed)


@pytest.mark.parametrize(
    ("without", "at_least"),
    [
        ("born", 100),
        ("free", 90),  # an abort before the first refill needs no such wait
        ("ready", 90),  # as does one before the first call
        ("last_copy", 50),  # only copies that nobody waited for need it: aborted runs
    ],
)
def test_each_wait_of_the_protocol_is_missed_when_it_is_left_out(without, at_least):
    caught = 0
    for seed in range(100):
        try:
            three_runs(seed, without)
        except OrderError:
            caught += 1
    assert caught >= at_least
