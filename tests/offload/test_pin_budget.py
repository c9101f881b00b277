"""Guarantee: what moves most often is locked first, whole, in pages, and what is not is named."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from offload import Lifetime
from offload.facts import ComponentFacts
from offload.pin_budget import (
    PAGE_BYTES,
    PinBudget,
    Pinned,
    WholeShare,
    first_fit,
    locked_bytes,
    pin_line,
    rank_for_pins,
)
from offload.plan import ComponentPlan, ResidencyPlan, UnitPlan
from offload.sizes import GIB
from tests.offload.facts_kit import budget, component

KIND = {letter.value[0].upper(): letter for letter in Lifetime}


def planned(facts: ComponentFacts, lifetimes: str) -> ComponentPlan:
    """The trunk's lifetime first: ``P FFSS``."""
    trunk, *layers = [KIND[letter] for letter in lifetimes.replace(" ", "")]
    units = [
        UnitPlan(name=u.name, list_name=u.list_name, num_bytes=u.num_bytes, lifetime=own)
        for u, own in zip((facts.trunk, *facts.layers), (trunk, *layers), strict=True)
    ]
    return ComponentPlan(name=facts.name, trunk=units[0], layers=tuple(units[1:]), window=1)


def ranking(**cases: tuple[ComponentFacts, str]) -> list[str]:
    plans = tuple(planned(facts, lifetimes) for facts, lifetimes in cases.values())
    plan = ResidencyPlan(components=plans, budget=budget(1 << 40))
    ranked = rank_for_pins(plan, [facts for facts, _ in cases.values()])
    return [f"{unit.component}.{unit.name}" for unit in ranked]


def test_streamed_units_come_before_forward_ones_and_permanent_ones_not_at_all() -> None:
    facts = component("vae", {"b": [10, 10, 10]}, trunk_bytes=5)
    assert ranking(vae=(facts, "F PSF")) == ["vae.b.1", "vae.trunk", "vae.b.2"]


def test_of_two_components_the_one_that_moves_more_a_request_comes_first() -> None:
    small = component("transformer", {"b": [10, 10]}, passes=20)  # 400 bytes a request
    large = component("text_encoder", {"b": [90, 90]})  # 180
    assert ranking(a=(large, "P SS"), b=(small, "P SS")) == [
        "transformer.b.0",
        "transformer.b.1",
        "text_encoder.b.0",
        "text_encoder.b.1",
    ]


def test_permanent_bytes_do_not_count_when_components_are_ranked() -> None:
    mostly_permanent = component("transformer", {"b": [500, 10, 10]})  # moves 20
    lent = component("vae", {"b": [30, 30]})  # moves 60
    assert ranking(a=(mostly_permanent, "P PFF"), b=(lent, "P FF"))[0] == "vae.b.0"


def test_a_streamed_layer_is_before_every_forward_one_of_a_component_that_moves_more() -> None:
    forward = component("transformer", {"b": [500, 500]})
    streamed = component("vae", {"b": [1, 1]})
    names = ranking(a=(forward, "P FF"), b=(streamed, "P SS"))
    assert names[:2] == ["vae.b.0", "vae.b.1"]


def test_what_a_usual_request_does_not_move_comes_last() -> None:
    facts = component("text_encoder", {"b": [10, 10]}, trunk_bytes=5)
    unused = replace(facts, layers=(replace(facts.layers[0], uses=0), facts.layers[1]))
    assert ranking(a=(unused, "F SS")) == [
        "text_encoder.b.1",
        "text_encoder.trunk",
        "text_encoder.b.0",
    ]


def test_units_without_bytes_need_no_pin() -> None:
    assert ranking(a=(component("vae", {"b": [0, 4]}), "F SS")) == ["vae.b.1"]


def test_locking_takes_whole_pages() -> None:
    assert [locked_bytes(n) for n in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [
        0,
        PAGE_BYTES,
        PAGE_BYTES,
        2 * PAGE_BYTES,
    ]


def test_what_does_not_fit_is_skipped_for_what_does() -> None:
    sizes = [3 * PAGE_BYTES, 2 * PAGE_BYTES, PAGE_BYTES]
    assert first_fit(sizes, 4 * PAGE_BYTES) == [True, False, True]
    assert first_fit(sizes, PAGE_BYTES - 1) == [False, False, False]


@given(st.lists(st.integers(1, 10**6)), st.integers(0, 10**7))
def test_the_budget_holds_and_nothing_that_fits_is_left_out(
    sizes: list[int], budget_bytes: int
) -> None:
    fits = first_fit(sizes, budget_bytes)
    taken = sum(locked_bytes(n) for n, fit in zip(sizes, fits, strict=True) if fit)
    left_out = [locked_bytes(n) for n, fit in zip(sizes, fits, strict=True) if not fit]
    assert taken <= budget_bytes
    assert all(taken + size > budget_bytes for size in left_out)


def pinned(component: str, host_gib: int, pinned_gib: int) -> Pinned:
    return Pinned(component=component, host_bytes=host_gib * GIB, pinned_bytes=pinned_gib * GIB)


def test_the_line_tells_what_is_locked_what_is_not_and_why() -> None:
    parts = [pinned("text_encoder", 10, 2), pinned("transformer", 6, 6), pinned("vae", 0, 0)]
    line = pin_line(parts, PinBudget(num_bytes=8 * GIB, why="as pin_budget says"))
    assert line == (
        "host copies: 8.00 GiB page-locked, 8.00 GiB not (text_encoder 8.00 GiB), which are "
        "copied more slowly: the pin budget is 8.00 GiB, as pin_budget says"
    )


def test_where_the_budget_would_reach_the_line_names_the_system() -> None:
    line = pin_line([pinned("vae", 2, 1)], PinBudget(num_bytes=2 * GIB, why="unused"))
    assert "the system locked no more (ulimit -l, or the container's memory limit)" in line


def test_the_line_is_short_where_all_is_locked_and_empty_where_nothing_is_lent() -> None:
    roomy = PinBudget(num_bytes=9 * GIB, why="unused")
    assert pin_line([pinned("vae", 2, 2)], roomy) == "host copies: 2.00 GiB, all page-locked"
    assert pin_line([pinned("vae", 0, 0)], roomy) == ""


def test_who_shares_with_nobody_may_lock_all_that_it_wants() -> None:
    share = WholeShare()
    assert share.ask(7).num_bytes == 7
    share.tell(7)
    assert share.ask(9).num_bytes == 9
