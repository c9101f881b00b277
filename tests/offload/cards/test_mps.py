"""The MPS card: one stream, so that every order holds by itself; driven by a fake of torch.mps."""

from types import SimpleNamespace

import pytest
import torch

from offload.cards.base import COMPUTE, COPY
from offload.cards.mps import MpsCard
from offload.errors import StateError

GIB = 1 << 30


class FakeMpsEvent:
    """Has passed once the fake has synchronized."""

    def __init__(self, mps: "FakeMps") -> None:
        self.mps = mps
        self.done = False
        self.at_ms = 0.0

    def record(self) -> None:
        self.done = False
        self.at_ms = self.mps.now_ms
        self.mps.open.append(self)

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.mps.synchronize()

    def elapsed_time(self, end: "FakeMpsEvent") -> float:
        assert self.done
        assert end.done
        return end.at_ms - self.at_ms


class FakeMps:
    """Counts bytes and calls; stands in for ``torch.mps``."""

    def __init__(self) -> None:
        self.allocated, self.driver = 0, 0
        self.now_ms = 0.0
        self.open: list[FakeMpsEvent] = []
        self.log: list[str] = []

    def recommended_max_memory(self) -> int:
        return 16 * GIB

    def current_allocated_memory(self) -> int:
        return self.allocated

    def driver_allocated_memory(self) -> int:
        return self.driver

    def synchronize(self) -> None:
        self.log.append("synchronize")
        for event in self.open:
            event.done = True
        self.open.clear()

    def empty_cache(self) -> None:
        self.log.append("empty cache")

    def Event(self, *, enable_timing: bool) -> FakeMpsEvent:
        return FakeMpsEvent(self)

    def empty(self, num_bytes: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert device.type == "mps"
        self.allocated += num_bytes
        self.driver = max(self.driver, self.allocated)
        return torch.empty(num_bytes, dtype=dtype)


@pytest.fixture
def mps() -> FakeMps:
    return FakeMps()


@pytest.fixture
def card(mps) -> MpsCard:
    return MpsCard(api=SimpleNamespace(mps=mps, empty=mps.empty))


def test_a_copy_is_there_when_it_returns(card):
    memory, source = card.allocate(256, "net/forward"), torch.arange(256).to(torch.uint8)
    card.copy(memory, source, "blocks.0", charge_to="net")
    assert torch.equal(memory, source)
    assert card.take_timings()["net"].copied_bytes == 256


def test_one_stream_needs_no_wait_between_streams(card, mps):
    event = card.event("born")
    card.record(event, COMPUTE)
    card.wait(event, COPY)
    card.wait(event, COMPUTE, charge_to="net")
    assert mps.log == []


def test_an_event_never_recorded_is_refused_all_the_same(card):
    with pytest.raises(StateError, match="never recorded"):
        card.wait(card.event("born"), COPY)


def test_the_host_waits_for_an_event_only_when_asked_to(card):
    event = card.event("last")
    card.record(event, COPY)
    assert not card.passed(event)
    card.host_wait(event)
    assert card.passed(event)


def test_memory_is_what_the_driver_recommends_less_what_is_held(card):
    memory = card.allocate(1 << 20, "net/permanent")
    facts = card.facts()
    assert facts.memory_bytes == 16 * GIB
    assert facts.free_bytes == 16 * GIB - memory.numel()
    assert facts.reserve_bytes == 16 * GIB // 50


def test_the_peak_is_the_most_that_was_seen_since_it_was_reset(card, mps):
    first = card.allocate(1000, "a")
    card.allocate(500, "b")
    card.release(first)
    mps.allocated = 500
    assert card.usage().peak_bytes == 1500
    card.reset_peak()
    usage = card.usage()
    assert (usage.peak_bytes, usage.allocated_bytes, usage.reserved_bytes) == (500, 500, 1500)


def test_the_cache_is_emptied_behind_the_last_command(card, mps):
    card.empty_cache()
    card.synchronize()
    assert mps.log == ["synchronize", "empty cache", "synchronize"]


def test_laps_are_the_devices_own_and_the_host_waits_once(card, mps):
    moments = []
    for at_ms in (0.0, 2.0, 5.0):
        mps.now_ms = at_ms
        moments.append(card.moment())
    assert mps.log == []
    assert card.laps(moments) == [pytest.approx(0.002), pytest.approx(0.003)]
    assert mps.log == ["synchronize"]
    assert card.laps([]) == []


def test_while_activations_are_watched_every_new_tensor_notes_the_peak(card, mps):
    card.allocate(1024, "net/forward")
    with card.watching_activations():
        mps.allocated += 4096  # as the operation that follows takes it
        x = torch.zeros(1024)
        mps.allocated -= 4096
    del x
    assert card.usage().peak_bytes == 1024 + 4096
    assert card.activation_peak_bytes() == 4096
    card.reset_peak()
    assert card.activation_peak_bytes() == 0
