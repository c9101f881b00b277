"""Guarantee: what is lent has one host copy, page-aligned, in its own layout; pins are undone."""

import weakref

import pytest
import torch
from torch import nn

from offload import StateError
from offload.host_store import HostStore, pieces
from offload.survey import find_units
from offload.unit import Unit
from tests.offload.fake_pinner import PAGE, FakePinner
from tests.offload.nets import S
from tests.offload.odd_nets import OddBlock

ROOMY = 1 << 30


def unit_of(module: nn.Module) -> Unit:
    (found,) = find_units(module)
    return Unit.build(found, S, torch.device("cpu"))


def test_the_copy_starts_a_page_and_holds_the_same_bytes_in_the_same_layout() -> None:
    block = OddBlock()
    expected = {name: (p.detach().clone(), p.stride()) for name, p in block.named_parameters()}
    unit, store = unit_of(block), HostStore()
    store.host(unit)
    assert unit.host is not None
    assert unit.host.data_ptr() % PAGE == 0
    assert unit.host.numel() == store.store_bytes == unit.num_bytes
    unit.release()
    for name, tensor in unit.tensors().items():
        weight, stride = expected[name]
        assert torch.equal(tensor, weight)
        assert tensor.stride() == stride or weight.numel() == 0


def test_loaded_memory_may_go_once_the_copy_is_made() -> None:
    module, store = nn.Linear(64, 64), HostStore()
    weight = module.weight.detach().clone()
    unit = unit_of(module)
    store.host(unit)
    module.weight.data.fill_(float("nan"))  # the checkpoint's memory is not read again
    unit.release()
    assert torch.equal(unit.tensors()["weight"], weight)


def test_a_unit_is_held_once() -> None:
    unit, store = unit_of(nn.Linear(4, 4)), HostStore()
    store.host(unit)
    with pytest.raises(StateError, match="already has a host copy"):
        store.host(unit)
    assert store.store_bytes == unit.num_bytes


def test_a_unit_without_bytes_needs_no_copy() -> None:
    unit, store = unit_of(nn.Tanh()), HostStore()
    store.host(unit)
    assert unit.host is None
    assert store.store_bytes == 0


def test_memory_is_locked_in_pieces_that_copies_do_not_cross(monkeypatch) -> None:
    monkeypatch.setattr("offload.host_store.PIECE_BYTES", 2 * PAGE)
    unit = unit_of(nn.Linear(5 * PAGE // 4, 1, bias=False))  # five pages
    pinner = FakePinner()
    store = HostStore(pinner)
    store.host(unit)
    store.pin([unit], 5 * PAGE)
    assert unit.host is not None
    start = unit.host.data_ptr()
    assert pinner.asked == [
        (start, 2 * PAGE),
        (start + 2 * PAGE, 2 * PAGE),
        (start + 4 * PAGE, PAGE),
    ]
    assert store.pinned_bytes == store.store_bytes == 5 * PAGE
    cuts = [(piece.start, piece.stop) for piece in pieces(unit.host)]
    assert cuts == [(0, 2 * PAGE), (2 * PAGE, 4 * PAGE), (4 * PAGE, 5 * PAGE)]


def test_dropping_unlocks_exactly_what_was_locked_and_is_idempotent(monkeypatch) -> None:
    monkeypatch.setattr("offload.host_store.PIECE_BYTES", PAGE)
    units = [unit_of(nn.Linear(3 * PAGE // 4, 1)) for _ in range(2)]
    pinner = FakePinner()
    store = HostStore(pinner)
    for unit in units:
        store.host(unit)
    store.pin(units, ROOMY)
    locked = dict(pinner.locked)
    assert len(locked) == 2 * 4
    store.drop(units[0])
    assert len(pinner.locked) == len(locked) // 2
    assert store.store_bytes == units[1].num_bytes
    store.drop(units[0])  # a fake that raises on an unknown address
    store.drop_all()
    assert pinner.locked == {}
    assert store.store_bytes == store.pinned_bytes == 0
    assert [unit.host for unit in units] == [None, None]


def test_where_locking_is_refused_the_copy_is_there_unpinned(monkeypatch) -> None:
    monkeypatch.setattr("offload.host_store.PIECE_BYTES", PAGE)
    module = nn.Linear(3 * PAGE // 4, 1, bias=False)
    weight = module.weight.detach().clone()
    unit = unit_of(module)
    pinner = FakePinner(refuse_from=1)
    store = HostStore(pinner)
    store.host(unit)
    store.pin([unit], ROOMY)
    assert len(pinner.asked) == 2  # the first is locked, the second refused, no third try
    assert store.pinned_bytes == PAGE
    assert store.store_bytes == 3 * PAGE
    unit.release()
    assert torch.equal(unit.tensors()["weight"], weight)
    store.drop_all()
    assert pinner.locked == {}


@pytest.mark.parametrize("unlocks", [True, False])
def test_memory_that_the_driver_does_not_unlock_stays_mapped(unlocks: bool) -> None:
    unit, store = unit_of(nn.Linear(4, 4)), HostStore(FakePinner(unlocks=unlocks))
    store.host(unit)
    store.pin([unit], ROOMY)
    assert unit.host is not None
    alive = weakref.ref(unit.host)
    store.drop(unit)
    assert unit.host is None
    assert (alive() is None) is unlocks
    assert store.store_bytes == 0
    assert store.pinned_bytes == (0 if unlocks else PAGE)  # what the driver keeps still counts


def test_within_a_budget_the_first_that_fit_are_locked_in_whole_pages() -> None:
    units = [unit_of(nn.Linear(width, PAGE // 4, bias=False)) for width in (3, 2, 1)]  # pages
    pinner = FakePinner()
    store = HostStore(pinner)
    for unit in units:
        store.host(unit)
    assert store.pinned_bytes == 0
    store.pin(units, 5 * PAGE - 1)  # the second does not fit whole, the third does
    assert [store.pinned_bytes_of(unit) for unit in units] == [3 * PAGE, 0, PAGE]
    assert store.pinned_bytes == sum(pinner.locked.values()) == 4 * PAGE


def test_another_ranking_unlocks_what_no_longer_fits_and_leaves_the_rest_alone() -> None:
    units = [unit_of(nn.Linear(width, PAGE // 4, bias=False)) for width in (3, 2, 1)]
    pinner = FakePinner()
    store = HostStore(pinner)
    for unit in units:
        store.host(unit)
    store.pin(units, 4 * PAGE)
    asked = len(pinner.asked)
    store.pin([units[2], units[1], units[0]], 4 * PAGE)
    assert [store.pinned_bytes_of(unit) for unit in units] == [0, 2 * PAGE, PAGE]
    assert len(pinner.asked) == asked + 1  # the last one stayed locked
    store.drop_all()
    assert pinner.locked == {}


def test_what_the_driver_refuses_leaves_its_part_to_the_next() -> None:
    units = [unit_of(nn.Linear(width, PAGE // 4, bias=False)) for width in (2, 2)]

    class FirstRefused(FakePinner):
        def register(self, address: int, num_bytes: int) -> bool:
            return super().register(address, num_bytes) and len(self.asked) > 1

    store = HostStore(FirstRefused())
    for unit in units:
        store.host(unit)
    store.pin(units, 2 * PAGE)
    assert [store.pinned_bytes_of(unit) for unit in units] == [0, 2 * PAGE]


def test_what_the_driver_does_not_unlock_is_counted_against_the_budget() -> None:
    units = [unit_of(nn.Linear(2, PAGE // 4, bias=False)) for _ in range(2)]
    store = HostStore(FakePinner(unlocks=False))
    for unit in units:
        store.host(unit)
    store.pin(units[:1], 2 * PAGE)
    store.pin(units[::-1], 2 * PAGE)  # the first should go, and does not
    assert [store.pinned_bytes_of(unit) for unit in units] == [2 * PAGE, 0]
    assert store.pinned_bytes == 2 * PAGE


def test_without_a_pinner_nothing_is_locked() -> None:
    unit, store = unit_of(nn.Linear(4, 4)), HostStore()
    store.host(unit)
    store.pin([unit], ROOMY)
    assert not store.can_pin
    assert store.pinned_bytes == store.pinned_bytes_of(unit) == 0
