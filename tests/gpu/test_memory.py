"""Bytes of a real card: facts without a context, exact counts, a cap that holds, a full card."""

import json
import subprocess
import sys

import pytest
import torch

from offload import detect_card, is_out_of_memory, is_sticky
from offload.cards.device_memory import slack_bytes

pytestmark = pytest.mark.gpu

MIB = 1 << 20

ASK_IN_A_FRESH_PROCESS = """
import json, torch
from offload import detect_card, list_cards
card = detect_card()
facts = card.facts()
before = torch.cuda.is_initialized()
listed = [c.uuid for c in list_cards()]
card.allocate(1 << 20, "net/permanent")
free, total = torch.cuda.mem_get_info()
print(json.dumps(dict(
    name=facts.name, uuid=facts.uuid, listed=listed, initialized=before,
    nvml_bytes=facts.memory_bytes, torch_bytes=total, free_before=facts.free_bytes, free_after=free,
    reserve_bytes=facts.reserve_bytes)))
"""


def test_the_facts_cost_no_context_and_agree_with_the_driver(tell):
    done = subprocess.run(
        [sys.executable, "-c", ASK_IN_A_FRESH_PROCESS], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    tell(**said)
    assert not said["initialized"]
    assert said["uuid"] in said["listed"]
    assert abs(said["nvml_bytes"] - said["torch_bytes"]) < 0.03 * said["torch_bytes"]
    context_bytes = said["free_before"] - said["free_after"]
    assert 0 < context_bytes < said["reserve_bytes"]


def test_an_allocation_counts_to_512_bytes_and_its_end_gives_all_back(card, tell):
    before = card.usage().allocated_bytes
    card.reset_peak()
    sizes = [1, 512, 100_000, 3 * MIB + 1, 300 * MIB]
    held = [card.allocate(size, "net/permanent") for size in sizes]
    counted = card.usage().allocated_bytes - before
    assert counted == sum(-(-size // 512) * 512 for size in sizes)
    while held:
        card.release(held.pop())
    usage = card.usage()
    tell(counted=counted, peak=usage.peak_bytes, reserved=usage.reserved_bytes)
    assert usage.allocated_bytes == before
    assert usage.peak_bytes == before + counted


def test_a_capped_card_is_full_at_its_cap_and_whole_afterwards(tell):
    torch.cuda.empty_cache()
    cap = 4 << 30
    card = detect_card(memory_bytes=cap, check_order=True)
    held = []
    try:
        while len(held) < 64:
            held.append(card.allocate(256 * MIB, "net/permanent"))
    except RuntimeError as error:
        full = (is_out_of_memory(error), is_sticky(error))
    reached = card.usage().allocated_bytes
    left = card.facts().free_bytes
    while held:
        card.release(held.pop())
    card.empty_cache()
    after = card.facts()
    kernel = torch.ones(1024, device=card.device).sum().item()
    card.lift_cap()
    tell(cap=cap, reached=reached, left=left, free_after=after.free_bytes)
    assert full == (True, False)
    assert cap - (2 << 30) < reached <= cap
    assert left < 256 * MIB + slack_bytes(cap)
    assert after.free_bytes > reached - 64 * MIB
    assert kernel == 1024
