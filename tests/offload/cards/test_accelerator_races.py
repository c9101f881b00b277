"""The accelerator card on streams that run late, in any order: right, and wrong without a wait."""

import pytest
import torch

from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import COMPUTE, COPY, Event
from tests.offload.cards.accelerator_kit import plain
from tests.offload.cards.fake_device import FakeTorch


@pytest.fixture
def api() -> FakeTorch:
    return FakeTorch()


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
