"""The link to the card: as fast as torch's own pinned copies, and never a wait for the host."""

import mmap
import time

import pytest
import torch

from offload.cards.base import COMPUTE, COPY

pytestmark = pytest.mark.gpu

SIZE = 256 << 20
ROUNDS = 8


def host_memory(num_bytes: int) -> torch.Tensor:
    """Faulted-in pages of our own, as the host store has them."""
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8).fill_(7)


def rate_of(card, source: torch.Tensor, label: str) -> float:
    """Bytes a second of copies from ``source``, by the card's own timing events."""
    memory = card.allocate(source.numel(), label)
    born, last = card.event("born"), card.event("last copy")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.take_timings()
    for _ in range(ROUNDS):
        card.copy(memory, source, "piece", charge_to=label)
    card.record(last, COPY)
    card.wait(last, COMPUTE)
    card.host_wait(last)
    timing = card.take_timings()[label]
    card.release(memory)
    assert timing.copied_bytes == ROUNDS * source.numel()
    return timing.copied_bytes / timing.copy_s


def test_memory_locked_in_place_copies_as_fast_as_torchs_pinned_memory(card, tell):
    ours = host_memory(SIZE)
    pageable = rate_of(card, ours, "pageable")
    began = time.perf_counter()
    assert card.pinner.register(ours.data_ptr(), SIZE)
    register_s = time.perf_counter() - began
    registered = rate_of(card, ours, "registered")
    pinned = rate_of(card, card.staging(SIZE), "pinned")
    card.synchronize()
    assert card.pinner.unregister(ours.data_ptr())
    tell(
        card=card.name,
        pageable_bytes_per_s=pageable,
        registered_bytes_per_s=registered,
        pinned_bytes_per_s=pinned,
        register_s=register_s,
        measured_by_facts=card.facts().copy_bytes_per_s,
    )
    assert registered > 0.9 * pinned


def test_the_host_does_not_wait_for_a_copy_that_waits_for_the_computation(card, keep_busy, tell):
    source = host_memory(SIZE)
    assert card.pinner.register(source.data_ptr(), SIZE)
    memory = card.allocate(SIZE, "net/streamed")
    free = card.event("free")
    keep_busy(200)
    card.record(free, COMPUTE)
    began = time.perf_counter()
    card.wait(free, COPY)
    card.copy(memory, source, "blocks.0", charge_to="net")
    returned_s = time.perf_counter() - began
    card.synchronize()
    whole_s = time.perf_counter() - began
    assert card.pinner.unregister(source.data_ptr())
    tell(returned_s=returned_s, whole_s=whole_s)
    assert returned_s < 0.1 * whole_s


def test_a_stall_is_as_long_as_the_copy_that_nothing_hides(card, tell):
    memory, source = card.allocate(SIZE, "net/forward"), card.staging(SIZE)
    born, ready = card.event("born"), card.event("ready")
    card.record(born, COMPUTE)
    card.wait(born, COPY)
    card.copy(memory, source, "blocks.0", charge_to="net")
    card.record(ready, COPY)
    card.wait(ready, COMPUTE, charge_to="net")
    card.synchronize()
    timing = card.take_timings()["net"]
    tell(copy_s=timing.copy_s, stall_s=timing.stall_s)
    assert 0.5 * timing.copy_s < timing.stall_s < 1.5 * timing.copy_s


def test_a_refused_page_lock_leaves_no_error_behind(card, tell):
    memory = host_memory(16 << 20)
    assert card.pinner.register(memory.data_ptr(), memory.numel())
    assert not card.pinner.register(memory.data_ptr(), memory.numel())
    kernel = torch.ones(1 << 20, device=card.device).sum().item()
    fresh = torch.empty(1 << 30, dtype=torch.uint8, device=card.device)
    card.synchronize()
    assert card.pinner.unregister(memory.data_ptr())
    tell(failures=card.pinner.num_failures, kernel=kernel, fresh_bytes=fresh.numel())
    assert card.pinner.num_failures == 1
    assert kernel == 1 << 20
