"""Permanent sets add up; forward sets and windows take turns. A plan is this arithmetic."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offload.plan import ComponentPlan, Lifetime, ResidencyPlan, UnitPlan
from tests.offload.facts_kit import budget

P, F, S = Lifetime.PERMANENT, Lifetime.FORWARD, Lifetime.STREAMED


def plan(
    name: str, trunk: tuple[int, Lifetime], layers: Sequence[tuple[int, Lifetime]], **more: int
) -> ComponentPlan:
    units = [
        UnitPlan(name=f"blocks.{i}", list_name="blocks", num_bytes=size, lifetime=lifetime)
        for i, (size, lifetime) in enumerate(layers)
    ]
    unit = UnitPlan(name="trunk", list_name=None, num_bytes=trunk[0], lifetime=trunk[1])
    return ComponentPlan(name=name, trunk=unit, layers=tuple(units), **more)  # type: ignore[arg-type]


def test_bytes_are_counted_by_lifetime_trunk_included() -> None:
    one = plan("a", (100, P), [(10, P), (20, F), (30, S), (40, S)])
    assert [one.bytes_with(lifetime) for lifetime in (P, F, S)] == [110, 20, 70]
    assert one.resident_layers == 2
    assert [unit.num_bytes for unit in one.streamed] == [30, 40]
    assert len(one.units) == 5


@pytest.mark.parametrize(
    ("window", "sizes", "held"),
    [
        (2, [], 0),
        (2, [7], 7),
        (2, [5, 50, 6, 7], 56),  # the largest two that follow each other, not twice the largest
        (3, [5, 50, 6, 7], 63),
        (9, [5, 50, 6, 7], 68),
    ],
)
def test_a_window_holds_the_largest_consecutive_layers(
    window: int, sizes: list[int], held: int
) -> None:
    assert plan("a", (0, F), [(size, S) for size in sizes], window=window).window_bytes == held


def test_resident_layers_between_streamed_ones_hold_no_place_in_the_window() -> None:
    assert plan("a", (0, F), [(5, S), (99, P), (6, S)]).window_bytes == 11


@pytest.mark.parametrize(
    ("trunk", "layers", "lifetime"),
    [
        (P, [P, P], "permanent"),
        (P, [P, S], "permanent"),
        (F, [F, S], "forward"),
        (P, [P, F, S], "mixed"),
        (F, [S, S], "streamed"),
        (P, [S, S], "streamed"),
        (P, [], "permanent"),
        (F, [], "forward"),
    ],
)
def test_a_lifetime_names_the_resident_layers(
    trunk: Lifetime, layers: list[Lifetime], lifetime: str
) -> None:
    assert plan("a", (1, trunk), [(1, one) for one in layers]).lifetime == lifetime


def test_the_peak_is_every_standing_set_and_the_largest_running_one() -> None:
    first = plan("a", (10, P), [(5, P), (7, F), (9, S)], activation_bytes=3, buffer_bytes=2)
    second = plan("b", (20, F), [(30, F)], activation_bytes=4)
    both = ResidencyPlan(components=(first, second), budget=budget(71))
    assert both.standing_bytes_of(first) == 10 + 5 + 2
    assert both.running_bytes_of(first) == 7 + 9 + 3
    assert both.running_bytes_of(second) == 50 + 4
    assert both.standing_bytes == 17
    assert both.peak_bytes == 17 + 54
    assert both.fits
    assert not ResidencyPlan(components=(first, second), budget=budget(70)).fits


def test_what_is_held_through_a_gap_counts_for_whatever_runs_in_it() -> None:
    first = plan("a", (10, F), [(5, F), (9, S)], activation_bytes=3)
    held = replace(first, gap_components=("b",))
    second = plan("b", (20, F), [])
    for one, through in ((first, 0), (held, 24), (replace(held, held_through_gaps=False), 0)):
        both = ResidencyPlan(components=(one, second), budget=budget(100))
        assert both.through_bytes_of(second) == through  # no activations: it does not run
        assert both.running_bytes_of(second) == 20 + through
        assert both.running_bytes_of(one) == 27
        assert both.peak_bytes == max(27, 20 + through)


def test_a_streamed_layer_that_is_not_used_has_no_place_in_the_window() -> None:
    one = plan("a", (0, F), [(5, S), (90, S), (6, S)])
    layers = (one.layers[0], replace(one.layers[1], used=False), one.layers[2])
    assert replace(one, layers=layers).window_bytes == 11


def test_each_permanent_unit_is_an_allocation_and_each_run_has_two() -> None:
    one = plan("a", (1, P), [(1, P), (1, F), (1, F), (1, S), (1, S)])
    rounded = ResidencyPlan(components=(one,), budget=budget(0, granularity_bytes=100))
    assert rounded.standing_bytes == 200
    assert rounded.running_bytes_of(one) == 200


def test_components_are_found_by_name() -> None:
    one = plan("a", (1, P), [])
    both = ResidencyPlan(components=(one,), budget=budget(1))
    assert both["a"] is one
    with pytest.raises(KeyError, match="b"):
        both["b"]


def test_nothing_needs_nothing() -> None:
    assert ResidencyPlan(components=(), budget=budget(0)).peak_bytes == 0
