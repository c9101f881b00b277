"""While activations are watched, a simulated card holds them beside what the engine allocates."""

import gc

import pytest
import torch

from offload.cards.simulated import SimulatedOutOfMemory
from tests.offload.cards.simulated_kit import make

KIB = 1 << 10


def tensor(kibibytes: int) -> torch.Tensor:
    return torch.zeros(kibibytes * KIB, dtype=torch.uint8)


def test_outside_nothing_of_them_is_seen():
    card = make()
    x = tensor(64)
    assert card.usage().allocated_bytes == card.usage().peak_bytes == 0
    assert card.activation_peak_bytes() == 0
    with card.watching_activations():
        assert card.usage().allocated_bytes == 0, "it was there before"
    del x


def test_the_peak_has_both_whichever_came_last():
    card = make()
    with card.watching_activations():
        x = tensor(64)
        weights = card.allocate(8 * KIB, "net/forward")
        assert card.usage().peak_bytes == 72 * KIB
        tensor(16)
        assert card.usage().peak_bytes == 88 * KIB
        assert card.usage().allocated_bytes == 72 * KIB
        card.reset_peak()
        assert card.usage().peak_bytes == 72 * KIB
        assert card.activation_peak_bytes() == 64 * KIB
        del x
        card.reset_peak()
        assert card.usage().peak_bytes == 8 * KIB
        assert card.activation_peak_bytes() == 0
    card.release(weights)


def test_a_card_that_refuses_counts_them_against_its_memory():
    card = make(memory_bytes=100 * KIB, used_bytes=20 * KIB, refuse_activations=True)
    with card.watching_activations():
        x = tensor(64)
        assert card.free_bytes == 16 * KIB
        with pytest.raises(SimulatedOutOfMemory, match=r"17\.0 KiB asked for net/forward, 16\.0"):
            card.allocate(17 * KIB, "net/forward")
        said = r"17\.0 KiB asked for an activation, 16\.0 KiB free"
        with pytest.raises(torch.OutOfMemoryError, match=said):
            tensor(17)
        gc.collect()
        y = tensor(16)
        assert card.free_bytes == 0
    assert card.free_bytes == 80 * KIB
    del x, y


def test_a_card_that_does_not_refuse_tells_what_would_be_needed():
    card = make(memory_bytes=32 * KIB)
    with card.watching_activations():
        x = tensor(64)
        card.release(card.allocate(32 * KIB, "net/forward"))
    assert card.usage().peak_bytes == 96 * KIB
    del x
