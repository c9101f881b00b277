"""Predicted times follow the engine: one link, gates, a window. Rate 1000 B/s, times by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.facts import ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, Lifetime, Policy, UnitPlan
from offload.schedule import LOOKAHEAD_BYTES, lookahead_units, predict
from offload.selection import resident_indices
from tests.offload.facts_kit import component, layer

P, F, S = Lifetime.PERMANENT, Lifetime.FORWARD, Lifetime.STREAMED
RATE = float(LOOKAHEAD_BYTES)  # a layer of 256 MiB takes one second, and the lookahead is two


def planned(
    facts: ComponentFacts, lifetimes: Sequence[Lifetime], trunk: Lifetime = P, window: int = 2
) -> ComponentPlan:
    def unit(of: UnitFacts, lifetime: Lifetime) -> UnitPlan:
        return UnitPlan(
            name=of.name, list_name=of.list_name, num_bytes=of.num_bytes, lifetime=lifetime
        )

    layers = [unit(one, own) for one, own in zip(facts.layers, lifetimes, strict=True)]
    return ComponentPlan(
        name=facts.name, trunk=unit(facts.trunk, trunk), layers=tuple(layers), window=window
    )


def seconds(
    copy_s: Sequence[float],
    compute_s: float,
    lifetimes: Sequence[Lifetime],
    *,
    passes: int = 1,
    window: int = 2,
    trunk: tuple[float, Lifetime] = (0.0, P),
) -> float:
    """Time of a request; copies in seconds of the link."""
    facts = component(
        "c",
        {"blocks": [round(one * RATE) for one in copy_s]},
        trunk_bytes=round(trunk[0] * RATE),
        compute_s=compute_s,
        passes=passes,
    )
    plan = planned(facts, lifetimes, trunk[1], window)
    return predict(facts, plan, RATE).request_s


# --- by hand -------------------------------------------------------------------------------------
def test_permanent_layers_only_compute() -> None:
    assert seconds([1, 1, 1], 2.0, [P, P, P], passes=4) == 24.0


@pytest.mark.parametrize(
    ("compute_s", "total_s"),
    [
        # slow compute: the first copy shows, the others hide behind the layer before
        (3.0, 1 + 3 * 4),
        # fast compute: the link is the clock, and the last layer follows its copy
        (0.25, 4 + 0.25),
        (1.0, 1 + 4),
    ],
)
def test_forward_layers_start_as_they_arrive(compute_s: float, total_s: float) -> None:
    assert seconds([1, 1, 1, 1], compute_s, [F] * 4) == pytest.approx(total_s)


def test_forward_layers_arrive_once_for_all_passes() -> None:
    assert seconds([1, 1, 1], 0.5, [F] * 3, passes=5) == pytest.approx(3 + 0.5 + 4 * 1.5)


def test_a_forward_copy_waits_for_the_entry_of_the_layer_two_before() -> None:
    # Permanent layers of 10 s come first: the copy of layer 3 is queued at the entry of layer 1,
    # long before it is needed, that of layer 0 at the beginning.
    assert seconds([1, 1, 1, 1], 10.0, [P, P, P, F]) == 40.0
    # With 15 s of copy it is late: queued at 10, there at 25, while layer 2 ended at 30.
    assert seconds([1, 1, 1, 15], 10.0, [P, P, P, F]) == 40.0
    # With 25 s: queued at 10, there at 35.
    assert seconds([0, 0, 0, 25], 10.0, [P, P, P, F]) == pytest.approx(45.0)


def test_small_layers_are_queued_further_ahead() -> None:
    assert lookahead_units([LOOKAHEAD_BYTES] * 3) == 2
    assert lookahead_units([LOOKAHEAD_BYTES // 10] * 30) == 10
    assert lookahead_units([]) >= 2


def test_the_run_begins_with_its_trunk() -> None:
    # trunk there at 2, layers at 3 and 4, computing from 3
    assert seconds([1, 1], 1.0, [F, F], trunk=(2.0, F)) == pytest.approx(5.0)
    assert seconds([1, 1], 1.0, [F, F], trunk=(2.0, P)) == pytest.approx(3.0)


def test_the_trunk_computes_while_the_first_layer_arrives() -> None:
    facts = component(
        "c", {"blocks": [int(RATE)]}, trunk_bytes=int(RATE), compute_s=1.0, trunk_compute_s=5.0
    )
    # trunk there at 1 and done at 6; the layer, there at 2, ends at 7
    assert predict(facts, planned(facts, [F], trunk=F), RATE).request_s == pytest.approx(7.0)


def test_a_streamed_copy_waits_for_the_place_of_the_call_a_window_before() -> None:
    # There at 1 and 2, ending at 4 and 7; the third is copied from 4 to 5, the fourth from 7 to 8.
    assert seconds([1, 1, 1, 1], 3.0, [S] * 4) == pytest.approx(13.0)
    # Long copies: the third starts when the link is free, at 8; it ends at 12, computed at 13.
    assert seconds([4, 4, 4], 1.0, [S] * 3) == pytest.approx(13.0)


def test_the_window_wraps_to_the_next_pass() -> None:
    # transfer-bound: three copies a pass, no gap between passes
    assert seconds([4, 4, 4], 1.0, [S] * 3, passes=3) == pytest.approx(9 * 4 + 1)
    # compute-bound: only the very first copy shows
    assert seconds([1, 1, 1], 2.0, [S] * 3, passes=10) == pytest.approx(1 + 10 * 6)


def test_a_forward_layer_overtakes_a_streamed_one_without_a_place() -> None:
    # Layers 0 and 1 fill the window, so 2 waits for the end of 0 at 1 + 10; layer 3 is near when
    # layer 1 begins at 11 and 2 has been queued by then: 2 from 11 to 12, 3 from 12 to 13.
    assert seconds([1, 1, 1, 1], 10.0, [S, S, S, F]) == pytest.approx(41.0)
    # Layer 3 of 25 s at the entry of 1 (t=11): there at 37; behind layer 2's copy (11 to 12).
    assert seconds([1, 1, 1, 25], 10.0, [S, S, S, F]) == pytest.approx(47.0)
    # A lookahead of three: layer 3 is near when 0 begins at 0.1, before 0's place is free for 2.
    # The link carries 3 from 0.2 to 1.2 and 2 until 1.3, where layer 2 begins (in order: 1.8).
    assert seconds([0.1, 0.1, 0.1, 1.0], 0.3, [S, S, S, F]) == pytest.approx(1.9)


def test_layers_that_all_have_a_place_are_copied_once() -> None:
    facts = component("c", {"blocks": [10, 10, 10]}, passes=7)
    kept = predict(facts, planned(facts, [P, S, S], window=2), 10.0)
    assert (kept.h2d_bytes, kept.request_s) == (20, 2.0)
    assert predict(facts, planned(facts, [S, S, S], window=2), 10.0).h2d_bytes == 210
    assert seconds([1, 1], 0.5, [S, S], passes=7) == pytest.approx(2 + 0.5 + 6)


def test_units_without_use_are_never_moved() -> None:
    unused = layer("b.0", "b", 50, uses=0, compute_s=9.0)
    used = layer("b.1", "b", 20, compute_s=1.0)
    trunk = layer("trunk", None, 0)
    facts = ComponentFacts(name="c", group="other", trunk=trunk, layers=(unused, used, used, used))
    for lifetime in (F, S):
        ahead = predict(facts, planned(facts, [lifetime] * 4), 10.0)
        assert ahead.h2d_bytes == 60
        assert ahead.compute_s == 3.0


def test_a_layer_called_n_times_computes_and_streams_n_times() -> None:
    trunk = layer("trunk", None, 0)
    sizes = [int(RATE)] * 3
    layers = tuple(
        layer(f"b.{i}", "b", size, uses=uses, compute_s=2.0)
        for i, (size, uses) in enumerate(zip(sizes, (3, 3, 1), strict=True))
    )
    facts = ComponentFacts(name="c", group="vae", trunk=trunk, layers=layers, passes=2)
    streamed = predict(facts, planned(facts, [S] * 3), RATE)
    assert streamed.h2d_bytes == 2 * 7 * int(RATE)
    assert streamed.compute_s == 28.0
    assert streamed.request_s == pytest.approx(29.0)
    assert streamed.stall_s == pytest.approx(1.0)
    forward = predict(facts, planned(facts, [F] * 3), RATE)
    assert forward.h2d_bytes == 3 * int(RATE)


def test_without_compute_times_time_is_transfer_time() -> None:
    facts = component("c", {"blocks": [100, 200, 300, 400]}, trunk_bytes=1000, passes=3)
    ahead = predict(facts, planned(facts, [F, S, S, S], trunk=F), 10.0)
    assert ahead.h2d_bytes == 1000 + 100 + 3 * 900
    assert ahead.request_s == pytest.approx(380.0)
    assert ahead.compute_s == 0


def test_the_first_pass_has_seconds_of_its_own() -> None:
    facts = component("c", {"blocks": [int(RATE)] * 2}, compute_s=1.0, passes=3)
    slow = tuple(replace(one, first_s=5.0) for one in facts.layers)
    facts = replace(facts, layers=slow, trunk=replace(facts.trunk, first_s=2.0, compute_s=0.5))
    ahead = predict(facts, planned(facts, [P, P]), RATE)
    assert ahead.compute_s == ahead.request_s == 2 + 10 + 2 * (0.5 + 2)
    # there at 1 and 2: hidden behind the trunk's two seconds
    assert predict(facts, planned(facts, [F, F]), RATE).request_s == ahead.compute_s


def test_what_is_dropped_in_gaps_arrives_once_a_run() -> None:
    facts = component(
        "c",
        {"blocks": [int(RATE)] * 3},
        trunk_bytes=int(RATE),
        compute_s=0.25,
        passes=5,
        gaps=(("d",), ("d",)),
    )
    held = planned(facts, [F] * 3, trunk=F)
    assert predict(facts, held, RATE).h2d_bytes == 4 * RATE
    dropped = predict(facts, replace(held, held_through_gaps=False), RATE)
    assert dropped.h2d_bytes == 3 * 4 * RATE
    # Runs of 2, 2 and 1 passes: four seconds of copies, the last layer, and passes of 0.75.
    assert dropped.request_s == pytest.approx(3 * (4 + 0.25) + 2 * 0.75)
    streamed = replace(planned(facts, [S] * 3), held_through_gaps=False)
    assert predict(facts, streamed, RATE).h2d_bytes == 5 * 3 * RATE


def test_the_second_run_computes_like_later_passes() -> None:
    facts = component("c", {"blocks": [int(RATE)]}, compute_s=1.0, passes=2, gaps=(("d",),))
    facts = replace(facts, layers=(replace(facts.layers[0], first_s=7.0),))
    dropped = replace(planned(facts, [F]), held_through_gaps=False)
    assert predict(facts, dropped, RATE).request_s == pytest.approx((1 + 7) + (1 + 1))


# --- against recurrences written down independently ------------------------------------------
copies = st.lists(st.integers(1, 40).map(lambda n: n / 4), min_size=1, max_size=9)
computes = st.integers(1, 40).map(lambda n: n / 4)


@given(copies, computes, st.integers(2, 4), st.integers(1, 30))
def test_streamed_passes_follow_link_and_window(
    copy_s: list[float], compute_s: float, window: int, passes: int
) -> None:
    kept = len(copy_s) <= window
    arrivals = copy_s if kept else copy_s * passes
    link_s, left = 0.0, list[float]()
    for index, one in enumerate(arrivals):
        place_s = left[index - window] if index >= window else 0.0
        link_s = max(link_s, place_s) + one
        left.append(max(left[-1] if left else 0.0, link_s) + compute_s)
    expected_s = left[-1] + (compute_s * len(copy_s) * (passes - 1) if kept else 0.0)
    found_s = seconds(copy_s, compute_s, [S] * len(copy_s), passes=passes, window=window)
    assert found_s == pytest.approx(expected_s)


@given(copies, computes)
def test_forward_passes_follow_link_and_gates(copy_s: list[float], compute_s: float) -> None:
    ahead = lookahead_units([round(one * RATE) for one in copy_s])
    link_s, now_s, entered = 0.0, 0.0, list[float]()
    for index, one in enumerate(copy_s):
        gate_s = entered[index - ahead] if index >= ahead else 0.0
        link_s = max(link_s, gate_s) + one
        entered.append(max(now_s, link_s))
        now_s = entered[-1] + compute_s
    assert seconds(copy_s, compute_s, [F] * len(copy_s)) == pytest.approx(now_s)


lifetime_lists = st.lists(st.sampled_from([P, F, S]), min_size=1, max_size=12)


@given(lifetime_lists, computes, st.integers(1, 8), st.integers(2, 4), st.data())
def test_no_request_is_faster_than_its_compute_or_its_copies_nor_slower_than_both(
    lifetimes: list[Lifetime], compute_s: float, passes: int, window: int, data: st.DataObject
) -> None:
    copy_s = data.draw(st.lists(st.integers(1, 20), min_size=len(lifetimes), max_size=20))
    sizes = [int(RATE) * one for one in copy_s[: len(lifetimes)]]
    facts = component("c", {"blocks": sizes}, compute_s=compute_s, passes=passes)
    ahead = predict(facts, planned(facts, lifetimes, window=window), RATE)
    transfer_s = ahead.h2d_bytes / RATE
    assert ahead.compute_s == pytest.approx(compute_s * len(lifetimes) * passes)
    assert ahead.request_s >= max(ahead.compute_s, transfer_s) - 1e-6
    assert ahead.request_s <= ahead.compute_s + transfer_s + 1e-6


@given(st.integers(2, 40), st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]))
def test_spread_with_two_places_reaches_the_bound_of_later_passes(half: int, ratio: float) -> None:
    """Design section 4: max(compute, streamed / W) a pass, at any ratio of transfer to compute."""
    layers, passes = 2 * half, 40
    facts = component("c", {"b": [int(RATE)] * layers}, compute_s=0.5 / ratio, passes=passes)
    resident = resident_indices(facts.layers, 0.5, Policy.SPREAD)
    lifetimes = [P if i in resident else S for i in range(layers)]
    found_s = predict(facts, planned(facts, lifetimes), RATE).request_s
    # Two streamed layers both have a place of the window, and are not copied again.
    a_pass_s = max(0.5 / ratio * layers, half if half > 2 else 0)
    assert found_s <= 1.01 * passes * a_pass_s + 2.0


def test_leading_with_two_places_is_the_slower_of_both_where_transfer_meets_compute() -> None:
    times = {}
    for policy in Policy:
        facts = component("c", {"b": [int(RATE)] * 32}, compute_s=0.5, passes=40)
        resident = resident_indices(facts.layers, 0.5, policy)
        lifetimes = [P if i in resident else S for i in range(32)]
        times[policy] = predict(facts, planned(facts, lifetimes), RATE).request_s
    assert 1.3 <= times[Policy.LEADING] / times[Policy.SPREAD] <= 1.5


def test_many_passes_cost_little_to_predict_and_add_up() -> None:
    def request_s(passes: int) -> float:
        return seconds([3, 1, 4, 1, 5, 9, 2, 6], 3.5, [S] * 8, passes=passes)

    assert request_s(100_001) - request_s(100_000) == pytest.approx(request_s(61) - request_s(60))
