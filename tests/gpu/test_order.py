"""Four hazards on real streams: with every wait the bytes are right, without one they are wrong.

A test whose missing wait goes unnoticed would be blind, so each hazard is also provoked.
"""

import pytest
import torch

from offload.cards import AcceleratorCard
from offload.cards.base import COMPUTE, COPY, Event

pytestmark = pytest.mark.gpu

SIZE = 64 << 20


class Leaving(AcceleratorCard):
    """Leaves out every wait for events of this name."""

    without = ""

    def _wait(self, event: Event, stream: str, charge_to: str) -> None:
        if event.name != self.without:
            super()._wait(event, stream, charge_to)

    def delay_copies(self, keep_busy) -> None:
        with self._stream(COPY):
            keep_busy(20)


@pytest.fixture
def leaving(card) -> Leaving:
    return Leaving(card.device)


def constant(card: AcceleratorCard, value: int) -> torch.Tensor:
    return card.staging(SIZE).fill_(value)


def marks(card: AcceleratorCard, *names: str) -> list[Event]:
    return [card.event(name) for name in names]


def only_value(memory: torch.Tensor) -> int:
    """The value of all bytes, -1 where they differ; waits for the card."""
    low, high = int(memory.min()), int(memory.max())
    return low if low == high else -1


def copy_into_memory_that_queued_kernels_still_use(card: Leaving, keep_busy) -> int:
    activation = torch.empty(SIZE, dtype=torch.uint8, device=card.device)
    address = activation.data_ptr()
    keep_busy(20)
    activation.fill_(99)
    del activation  # freed by the host, not yet written by the card
    memory, source = card.allocate(SIZE, "net/forward"), constant(card, 1)
    assert memory.data_ptr() == address, "the allocator gave other memory: nothing is tested"
    born, ready = marks(card, "born", "ready")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.copy(memory, source, "blocks.0", charge_to="net")
    card.record(ready, COPY)
    card.wait(ready, COMPUTE)
    card.synchronize()
    return only_value(memory) - 1  # 0 is right


def read_a_unit_whose_copy_is_late(card: Leaving, keep_busy) -> int:
    memory, source = card.allocate(SIZE, "net/forward").fill_(99), constant(card, 1)
    born, ready = marks(card, "born", "ready")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.delay_copies(keep_busy)
    card.copy(memory, source, "blocks.0", charge_to="net")
    card.record(ready, COPY)
    card.wait(ready, COMPUTE)
    read = memory.clone()
    card.synchronize()
    return only_value(read) - 1


def refill_a_place_whose_reader_is_late(card: Leaving, keep_busy) -> int:
    memory = card.allocate(SIZE, "net/streamed")
    first, second = constant(card, 1), constant(card, 2)
    born, ready, free = marks(card, "born", "ready", "free")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.copy(memory, first, "blocks.0", charge_to="net")
    card.record(ready, COPY)
    card.wait(ready, COMPUTE)
    keep_busy(20)
    read = memory.clone()
    card.record(free, COMPUTE)
    card.wait(free, COPY)
    card.copy(memory, second, "blocks.1", charge_to="net")
    card.synchronize()
    return only_value(read) - 1


def release_memory_that_a_late_copy_writes_to(card: Leaving, keep_busy) -> int:
    memory, source = card.allocate(SIZE, "net/forward"), constant(card, 1)
    address = memory.data_ptr()
    born, last = marks(card, "born", "last copy")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.delay_copies(keep_busy)
    card.copy(memory, source, "a unit that nobody reads", charge_to="net")
    card.record(last, COPY)
    card.wait(last, COMPUTE)
    card.release(memory)
    del memory
    next_owner = torch.empty(SIZE, dtype=torch.uint8, device=card.device)
    assert next_owner.data_ptr() == address, "the allocator gave other memory: nothing is tested"
    next_owner.fill_(77)
    card.synchronize()
    return only_value(next_owner) - 77


@pytest.mark.parametrize(
    ("hazard", "wait"),
    [
        (copy_into_memory_that_queued_kernels_still_use, "born"),
        (read_a_unit_whose_copy_is_late, "ready"),
        (refill_a_place_whose_reader_is_late, "free"),
        (release_memory_that_a_late_copy_writes_to, "last copy"),
    ],
    ids=["born", "ready", "free", "last_copy"],
)
def test_the_wait_makes_it_right_and_its_absence_is_seen(leaving, keep_busy, tell, hazard, wait):
    with_it = [hazard(leaving, keep_busy) for _ in range(5)]
    leaving.without = wait
    without_it = [hazard(leaving, keep_busy) for _ in range(5)]
    tell(wait=wait, wrong_with=sum(map(bool, with_it)), wrong_without=sum(map(bool, without_it)))
    assert with_it == [0] * 5
    assert any(without_it)


def test_memory_used_on_a_second_stream_goes_back_only_when_that_is_done(card, keep_busy, tell):
    memory = card.allocate(SIZE, "net/forward").fill_(1)
    address = memory.data_ptr()
    ready = card.event("ready")
    with torch.Stream(card.device):
        card.record(ready, COMPUTE)  # the card sees the change and orders the two streams
        keep_busy(50)
        read = memory.clone()
        card.release(memory)
    del memory
    next_owner = torch.empty(SIZE, dtype=torch.uint8, device=card.device)
    assert next_owner.data_ptr() == address, "the allocator gave other memory: nothing is tested"
    next_owner.fill_(2)
    card.synchronize()
    tell(read=only_value(read))
    assert only_value(read) == 1
