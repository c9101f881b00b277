"""Guarantee: permanent units go straight to the card, through two small buffers, uncopied."""

import gc
import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from offload import SimulatedCard
from offload.checkpoint import Placement
from offload.survey import find_units
from offload.unit import Unit, UnitState
from tests.offload.nets import P
from tests.offload.odd_nets import Lump, OddBlock

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _quick_collection() -> Iterator[None]:
    """What other tests imported is left out of every ``gc.collect()`` here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class CountingCard(SimulatedCard):
    """Remembers the buffers it gave, the length of every copy and what was released."""

    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        super().__init__(memory_bytes=memory_bytes, bytes_per_s=1e9, clock="virtual")
        self.buffers: list[int] = []
        self.copies: list[int] = []
        self.sources: set[int] = set()
        self.released: list[int] = []

    def staging(self, num_bytes: int) -> torch.Tensor:
        self.buffers.append(num_bytes)
        return super().staging(num_bytes)

    def _release(self, tensor: torch.Tensor) -> None:
        self.released.append(tensor.numel())
        super()._release(tensor)

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None:
        self.copies.append(source.numel())
        self.sources.add(source.data_ptr())
        super()._copy(destination, source, charge_to)


@pytest.fixture
def small_staging(monkeypatch) -> int:
    monkeypatch.setattr("offload.checkpoint.STAGING_BYTES", 256)
    return 256


def unit_of(module: nn.Module) -> Unit:
    (found,) = find_units(module)
    return Unit.build(found, P, CPU)


@contextmanager
def placing(card: SimulatedCard, unit: Unit) -> Iterator[Placement]:
    placement = Placement(card, unit.num_bytes, "net")
    yield placement
    placement.finish()


def test_bytes_arrive_whole_through_buffers_smaller_than_the_unit(small_staging: int) -> None:
    block = OddBlock()
    before = {name: (p.detach().clone(), p.stride(), id(p)) for name, p in block.named_parameters()}
    card, unit = CountingCard(), unit_of(block)
    with placing(card, unit) as placement:
        memory = placement.place(unit, "net/permanent/trunk")
    for name, parameter in block.named_parameters():
        weight, stride, identity = before[name]
        assert torch.equal(parameter, weight)
        assert (parameter.stride(), id(parameter)) == (stride, identity)
    assert unit.state is UnitState.BOUND
    assert unit.memory is memory
    assert card.ledger() == {"net/permanent/trunk": unit.num_bytes}


def test_everything_passes_through_two_buffers_and_nothing_else(small_staging: int) -> None:
    card, unit = CountingCard(), unit_of(Lump(1000))  # 4000 bytes
    with placing(card, unit) as placement:
        placement.place(unit, "net/permanent/trunk")
    assert card.buffers == [256, 256]
    assert len(card.sources) == 2
    assert sum(card.copies) == 4000
    assert max(card.copies) == 256


def test_buffers_are_no_larger_than_the_largest_unit() -> None:
    card = CountingCard()
    Placement(card, 1000, "net")
    assert card.buffers == [1000, 1000]


def test_a_placed_unit_has_no_host_copy_and_lets_the_loaded_memory_go(small_staging: int) -> None:
    pages = mmap.mmap(-1, 4096)
    module = nn.Module()
    weight = torch.frombuffer(pages, dtype=torch.float32)
    module.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
    gone = weakref.ref(pages)
    del pages, weight
    card = CountingCard()
    unit = unit_of(module)
    with placing(card, unit) as placement:
        placement.place(unit, "net/permanent/trunk")
        assert gone() is None
    assert unit.host is None


def test_units_follow_each_other_through_the_same_buffers(small_staging: int) -> None:
    modules = [Lump(count) for count in (70, 200, 10, 130)]
    weights = [module.weight.detach().clone() for module in modules]
    card = CountingCard()
    placement = Placement(card, 800, "net")
    for i, module in enumerate(modules):
        placement.place(unit_of(module), f"net/permanent/{i}")
    placement.finish()
    assert all(torch.equal(m.weight, w) for m, w in zip(modules, weights, strict=True))
    assert card.num_copies_in_flight == 0


def test_a_unit_that_does_not_fit_stays_as_it_was_loaded() -> None:
    module = Lump(1000)
    pointer = module.weight.data_ptr()
    card, unit = CountingCard(memory_bytes=256), unit_of(module)
    with placing(card, unit) as placement, pytest.raises(torch.OutOfMemoryError):
        placement.place(unit, "net/permanent/trunk")
    assert unit.state is UnitState.LOADED
    assert module.weight.data_ptr() == pointer
    assert card.ledger() == {}


def test_a_copy_that_fails_leaves_the_unit_as_it_was_loaded_and_the_card_empty(
    small_staging: int,
) -> None:
    module = Lump(1000)
    weight, pointer = module.weight.detach().clone(), module.weight.data_ptr()
    card, unit = CountingCard(), unit_of(module)
    error = OSError("the link broke")
    card.fail_copy(error, after=1)
    placement = Placement(card, unit.num_bytes, "net")
    with pytest.raises(OSError, match="the link broke"):
        placement.place(unit, "net/permanent/trunk")
    assert unit.state is UnitState.LOADED
    assert module.weight.data_ptr() == pointer
    assert torch.equal(module.weight, weight)
    assert card.released == [unit.num_bytes]
    error.__traceback__ = error.__context__ = (
        None  # frames still hold memory, as in an except block
    )
    gc.collect()
    assert card.ledger() == {}
