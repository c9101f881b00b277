"""The bytes of an accelerator: asked without a context, then by the driver, or capped."""

import pytest
import torch

from offload.cards.accelerator import AcceleratorCard
from offload.cards.device_memory import CONTEXT_BYTES, slack_bytes
from offload.facts import CardFacts
from tests.offload.cards.fake_device import FakeTorch

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def api() -> FakeTorch:
    return FakeTorch()


@pytest.fixture
def card(api) -> AcceleratorCard:
    return AcceleratorCard("cuda:0", api=api)


def probe_of(api: FakeTorch, free: int):
    facts = CardFacts(name="H", memory_bytes=api.total, free_bytes=free, uuid="GPU-1")
    return lambda: facts


class TestFacts:
    def test_before_a_context_the_probe_tells_and_a_context_is_set_aside(self, api):
        card = AcceleratorCard("cuda:0", api=api, probe=probe_of(api, 22 * GIB))
        facts = card.facts()
        assert (facts.name, facts.uuid, facts.free_bytes) == ("H", "GPU-1", 22 * GIB)
        assert facts.reserve_bytes == CONTEXT_BYTES + slack_bytes(24 * GIB)
        assert not api.initialized

    def test_with_a_context_the_driver_tells_and_the_own_cache_is_free(self, api):
        card = AcceleratorCard("cuda:0", api=api, probe=probe_of(api, 22 * GIB))
        card.allocate(256, "net/permanent")
        api.stats = {
            "allocated_bytes.all.current": 3 * GIB,
            "reserved_bytes.all.current": 5 * GIB,
            "allocated_bytes.all.peak": 4 * GIB,
        }
        facts, usage = card.facts(), card.usage()
        assert facts.free_bytes == 20 * GIB + 2 * GIB
        assert facts.reserve_bytes == card.reserve_bytes == slack_bytes(24 * GIB)
        assert (usage.allocated_bytes, usage.reserved_bytes) == (3 * GIB, 5 * GIB)
        assert (usage.peak_bytes, usage.memory_bytes) == (4 * GIB, 24 * GIB)

    def test_what_is_set_aside_adds_to_every_reserve_that_is_told_later(self, card):
        before = card.facts().reserve_bytes
        card.set_aside_bytes = GIB
        assert card.facts().reserve_bytes == card.facts().reserve_bytes == before + GIB

    def test_without_a_probe_the_driver_names_the_card(self, card):
        facts = card.facts()
        assert (facts.name, facts.memory_bytes, facts.free_bytes) == (
            "Fake cuda",
            24 * GIB,
            20 * GIB,
        )

    @pytest.mark.parametrize(
        ("total", "slack"), [(8 * GIB, 256 * MIB), (100 * GIB, 100 * GIB // 50)]
    )
    def test_slack_is_two_percent_and_at_least_a_quarter_of_a_gib(self, total, slack):
        assert slack_bytes(total) == slack

    def test_a_driver_that_does_not_tell_is_worked_around(self):
        api = FakeTorch(kind="xpu")
        api.tells_memory = False
        api.stats = {"reserved_bytes.all.current": 4 * GIB, "allocated_bytes.all.current": GIB}
        card = AcceleratorCard("xpu", api=api)
        assert card.facts().free_bytes == 24 * GIB - GIB
        assert card.pinner is None

    def test_an_older_torch_is_asked_through_the_device_module(self, api, card):
        del api.accelerator.get_memory_info
        assert card.facts().free_bytes == 20 * GIB

    def test_a_device_without_a_choice_of_allocators_is_fine(self, api, card):
        del api.module.get_allocator_backend
        assert card.allocate(256, "net/forward").numel() == 256

    def test_a_staging_buffer_is_page_locked_and_may_be_written_in_any_mode(self, api, card):
        with torch.inference_mode():
            buffer = card.staging(4096)
        assert api.log == ["pin 4096"]
        assert not buffer.is_inference()
        assert buffer.shape == (4096,)

    def test_memory_is_page_locked_by_torchs_own_runtime_on_the_cards_own_device(self, api):
        card = AcceleratorCard("cuda:1", api=api)
        api.cuda = api.module
        api.cuda.init = lambda: None
        api.version = type("version", (), {"hip": None})
        api.__file__ = "/nowhere/torch/__init__.py"
        with pytest.raises(OSError, match=r"/nowhere/torch/lib/libc10_cuda\.so"):
            card.pinner.register(0, 4096)
        assert api.current_index == 1


class TestSmallerCard:
    def test_it_has_what_the_cap_leaves_and_the_allocator_is_held_to_that(self, api):
        """24 GiB with 2 GiB of others and 1 GiB of context, played as 8."""
        card = AcceleratorCard(
            "cuda:0", api=api, memory_bytes=8 * GIB, probe=probe_of(api, 22 * GIB)
        )
        assert card.facts().free_bytes == card.memory_bytes == 8 * GIB
        api.free = 24 * GIB - 2 * GIB - 1 * GIB
        card.allocate(256, "net/permanent")
        assert api.fraction == pytest.approx((8 - 1) / 24)
        api.free -= 3 * GIB
        api.stats = {
            "allocated_bytes.all.current": 2 * GIB,
            "reserved_bytes.all.current": 3 * GIB,
        }
        assert card.facts().free_bytes == 8 * GIB - 1 * GIB - 2 * GIB
        assert card.facts().reserve_bytes == slack_bytes(8 * GIB)

    def test_a_full_real_card_leaves_less_than_the_cap(self, api):
        card = AcceleratorCard("cuda:0", api=api, memory_bytes=8 * GIB)
        api.free = GIB
        assert card.facts().free_bytes <= GIB

    def test_a_cap_above_the_card_is_the_card(self, api):
        card = AcceleratorCard(
            "cuda:0", api=api, memory_bytes=99 * GIB, probe=probe_of(api, 22 * GIB)
        )
        assert card.memory_bytes == 24 * GIB

    def test_lifting_the_cap_gives_the_card_back(self, api):
        card = AcceleratorCard("cuda:0", api=api, memory_bytes=8 * GIB)
        card.allocate(256, "net/permanent")
        card.lift_cap()
        assert api.fraction == 1.0
        assert card.memory_bytes == 24 * GIB
        assert card.facts().free_bytes == 20 * GIB
