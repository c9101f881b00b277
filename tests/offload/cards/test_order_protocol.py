"""The run protocol on bare addresses: no race as written, and each wait is missed if left out."""

import random

import pytest

from offload.cards.intervals import Range
from offload.cards.order import OrderChecker
from offload.errors import OrderError
from tests.offload.cards.points import Point, span


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
