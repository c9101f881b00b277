"""Guarantee: busy places never overlap, at most ``places`` are busy, overwritten ones are told."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st

from offload.window import Window
from tests.offload.conftest import Attach
from tests.offload.nets import S, make_net, picture, plan_for

sizes = st.lists(st.integers(1, 9), min_size=2, max_size=8)


def largest(num: int, unit_bytes: list[int]) -> int:
    """The largest ``num`` consecutive together, as the plan sizes the ring."""
    return max(sum(unit_bytes[i : i + num]) for i in range(len(unit_bytes)))


@given(unit_bytes=sizes, places=st.integers(2, 4), data=st.data())
def test_any_sequence_of_calls_keeps_bytes_apart(unit_bytes, places: int, data) -> None:
    """A model of the bytes: whose they are, and whether they are being read."""
    window: Window[int] = Window(largest(places, unit_bytes), places)
    owner: list[int | None] = [None] * window.num_bytes
    busy: set[int] = set()
    for _ in range(data.draw(st.integers(1, 25), "steps")):
        key = data.draw(st.integers(0, len(unit_bytes) - 1), "unit")
        if key in busy and data.draw(st.booleans(), "leave"):
            window.leave(key)
            busy.discard(key)
        elif key in busy:
            window.drop(key)
            busy.discard(key)
            owner = [None if o == key else o for o in owner]
        elif window.holds(key):
            window.reuse(key)
            busy.add(key)
        else:
            taken = window.take(key, unit_bytes[key])
            if taken is None:
                assert len(busy) >= places or not _gap(owner, busy, unit_bytes[key])
                continue
            start, overwritten = taken
            place = range(start, start + unit_bytes[key])
            assert place.stop <= window.num_bytes
            there = {owner[i] for i in place} - {None}
            assert there == set(overwritten)
            assert not there & busy
            owner = [None if o in there else o for o in owner]
            for i in place:
                owner[i] = key
            busy.add(key)
        assert set(window.busy) == busy
        assert all(window.holds(k) == (k in owner) for k in range(len(unit_bytes)))
        assert all(owner[window.start_of(k)] == k for k in busy)


def _gap(owner: list[int | None], busy: set[int], size: int) -> bool:
    """Whether a place at the window's start or behind a unit touches nothing busy."""
    ends = [i + 1 for i in range(len(owner) - 1) if owner[i] not in (None, owner[i + 1])]
    free = [o not in busy for o in owner]
    return any(s + size <= len(owner) and all(free[s : s + size]) for s in (0, *ends))


@given(unit_bytes=sizes, places=st.integers(2, 4), passes=st.integers(1, 3))
def test_a_ring_as_large_as_its_largest_neighbours_serves_passes_in_order(
    unit_bytes: list[int], places: int, passes: int
) -> None:
    """In order, the running unit always gets a place while the one before it is done."""
    window: Window[int] = Window(largest(places, unit_bytes), places)
    for _ in range(passes):
        for key, num_bytes in enumerate(unit_bytes):
            if window.holds(key):
                window.reuse(key)
            else:
                assert window.take(key, num_bytes) is not None
            window.leave(key)


def test_two_places_hold_the_running_unit_and_the_next() -> None:
    window: Window[str] = Window(8, 2)
    assert window.take("a", 4) == (0, [])
    assert window.take("b", 4) == (4, [])
    assert window.take("c", 4) is None
    window.leave("a")
    assert window.take("c", 4) == (0, ["a"])
    assert not window.holds("a")


def test_no_more_than_places_are_busy_even_where_bytes_are_free() -> None:
    window: Window[str] = Window(100, 2)
    assert window.take("a", 1) is not None
    assert window.take("b", 1) is not None
    assert window.take("c", 1) is None


def test_a_stamped_unit_called_again_is_there_already() -> None:
    window: Window[str] = Window(8, 2)
    window.take("a", 4)
    window.leave("a")
    assert window.holds("a")
    assert window.busy == []
    window.reuse("a")
    assert window.busy == ["a"]
    assert window.start_of("a") == 0


def test_an_empty_place_is_taken_before_a_stamped_one_is_overwritten() -> None:
    window: Window[str] = Window(8, 2)
    window.take("a", 4)
    window.leave("a")
    assert window.take("b", 4) == (4, [])
    assert window.holds("a")


def test_a_large_unit_overwrites_several_stamps_and_names_them_all() -> None:
    window: Window[str] = Window(9, 3)
    for key in "abc":
        window.take(key, 3)
    for key in "abc":
        window.leave(key)
    assert window.take("d", 8) == (0, ["a", "b", "c"])


def test_the_place_that_was_left_longest_ago_is_overwritten_first() -> None:
    """Its last reader is the first to be done, whatever the order of the places."""
    window: Window[str] = Window(9, 3)
    for key in "abc":
        window.take(key, 3)
    for key in "cab":
        window.leave(key)
    assert window.take("d", 3) == (6, ["c"])
    window.leave("d")
    window.reuse("a")
    window.leave("a")
    assert window.take("e", 3) == (3, ["b"])


def test_what_does_not_fit_beside_busy_units_waits() -> None:
    window: Window[str] = Window(8, 3)
    window.take("a", 4)
    assert window.take("b", 5) is None
    window.leave("a")
    assert window.take("b", 5) == (0, ["a"])


def test_leaving_or_dropping_an_unknown_unit_does_nothing() -> None:
    window: Window[str] = Window(8, 2)
    window.leave("a")
    window.drop("a")
    assert window.busy == []


def test_layers_that_are_still_in_the_window_are_not_copied_again(attach: Attach) -> None:
    net = make_net(depth=2, side=0)
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [S], window=2))
    with residency.request() as usage:
        x = y = picture(1)
        for i in (0, 1, 0, 0, 1):
            x, y = net.blocks[i](x), plain.blocks[i](y)
    assert torch.equal(x, y)
    weights = residency.plan["net"]
    assert usage.components["net"].copied_bytes == sum(unit.num_bytes for unit in weights.units)
