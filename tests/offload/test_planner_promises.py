"""For any facts: the best plan, never above its budget, never slower with more memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.errors import DoesNotFitError
from offload.explanation import predicted
from offload.facts import ComponentFacts, UnitFacts
from offload.plan import Lifetime, Policy, ResidencyPlan
from offload.planner import plan_residency
from offload.selection import resident_indices
from offload.spec import ComponentSpec, ResidencySpec
from tests.offload.facts_kit import budget, component, layer, plan

P, F, S = Lifetime.PERMANENT, Lifetime.FORWARD, Lifetime.STREAMED


# --- the formulas, written down once more ------------------------------------------------------
def peak_by_hand(made: ResidencyPlan) -> int:
    standing, running = 0, [0]
    for one in made.components:
        sizes = {life: [u.num_bytes for u in one.units if u.lifetime is life] for life in Lifetime}
        streamed = [unit.num_bytes for unit in one.streamed if unit.used]
        width = min(one.window, len(streamed))
        windows = [sum(streamed[i : i + width]) for i in range(len(streamed) - width + 1)]
        standing += sum(sizes[P]) + one.buffer_bytes
        running.append(sum(sizes[F]) + max(windows, default=0) + one.activation_bytes)
    return standing + max(running)


def moved_by_hand(facts: ComponentFacts, lives: Sequence[Lifetime]) -> int:
    """Without compute times, what is copied is the time. Two streamed layers keep their places."""
    again = facts.passes if lives.count(S) > 2 else 1
    times = {P: 0, F: 1, S: again}
    units = (facts.trunk, *facts.layers)
    return sum(u.num_bytes * times[own] for u, own in zip(units, lives, strict=True))


def every_plan(facts: ComponentFacts) -> Iterator[tuple[Lifetime, ...]]:
    """Trunk first. The trunk is never streamed and stays with permanent layers."""
    for trunk in (P, F):
        for layers in product(Lifetime, repeat=len(facts.layers)):
            if trunk is P or P not in layers:
                yield (trunk, *layers)


def best_by_hand(facts: Sequence[ComponentFacts], num_bytes: int) -> tuple[int, int, int] | None:
    """(bytes moved, bytes streamed, peak) of the best of all plans that fit."""
    best: tuple[int, int, int] | None = None
    for lives in product(*(list(every_plan(one)) for one in facts)):
        held, running, moved, streamed = 0, 0, 0, 0
        for one, own in zip(facts, lives, strict=True):
            units = list(zip((one.trunk, *one.layers), own, strict=True))
            size = {life: [u.num_bytes for u, o in units if o is life] for life in Lifetime}
            held += sum(size[P])
            window = sum(sorted(size[S])[-2:])  # layers of one size
            running = max(running, sum(size[F]) + window + one.activation_bytes)
            moved += moved_by_hand(one, own)
            streamed += sum(size[S])
        if held + running <= num_bytes:
            key = (moved, streamed, held + running)
            best = key if best is None else min(best, key)
    return best


even = st.builds(
    lambda count, size, trunk, passes, activation: component(
        "c",
        {"blocks": [size] * count},
        trunk_bytes=trunk,
        passes=passes,
        activation_bytes=activation,
    ),
    st.integers(0, 4),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(0, 9),
)


@settings(max_examples=40)
@given(st.lists(even, min_size=1, max_size=2), st.integers(0, 90))
def test_the_plan_is_the_best_of_all_plans(facts: list[ComponentFacts], num_bytes: int) -> None:
    named = [replace(one, name=f"c{i}") for i, one in enumerate(facts)]
    expected = best_by_hand(named, num_bytes)
    if expected is None:
        with pytest.raises(DoesNotFitError):
            plan(named, num_bytes)
        return
    made = plan(named, num_bytes)
    lives = [[unit.lifetime for unit in one.units] for one in made.components]
    moved = sum(moved_by_hand(one, own) for one, own in zip(named, lives, strict=True))
    streamed = sum(one.bytes_with(S) for one in made.components)
    assert (moved, streamed, made.peak_bytes) == expected


# --- for any facts -----------------------------------------------------------------------------
sizes = st.integers(0, 50)
seconds = st.sampled_from([0.0, 0.004, 0.02, 0.1])
units = st.builds(
    lambda size, list_name, compute_s, uses, pinned: layer(
        "blocks.0",
        list_name,
        size,
        compute_s=compute_s,
        uses=uses,
        pinned_to_card="a wrapper subclass" if pinned else "",
    ),
    sizes,
    st.sampled_from(["a", "b"]),
    seconds,
    st.integers(0, 3),
    st.sampled_from([False] * 9 + [True]),
)
any_component = st.builds(
    lambda trunk, layers, passes, activation, buffers: ComponentFacts(
        name="c",
        group="other",
        trunk=UnitFacts(name="trunk", list_name=None, num_bytes=trunk),
        layers=tuple(layers),
        passes=passes,
        activation_bytes=activation,
        buffer_bytes=buffers,
    ),
    sizes,
    st.lists(units, max_size=7),
    st.integers(1, 4),
    sizes,
    st.integers(0, 5),
)
any_facts = st.lists(any_component, min_size=1, max_size=2).map(
    lambda several: [replace(one, name=f"c{i}") for i, one in enumerate(several)]
)
any_wish = st.builds(
    lambda layers, lifetime, policy, window: ComponentSpec(
        resident_layers=layers, lifetime=lifetime, policy=policy, window=window
    ),
    st.sampled_from(["auto", "auto", "all", "none", 0.5, 2, 0.8]),
    st.sampled_from(["auto", "auto", "forward", "permanent"]),
    st.sampled_from(["auto", "leading", "spread"]),
    st.sampled_from(["auto", "auto", 3]),
)


def plan_or_none(
    facts: Sequence[ComponentFacts], num_bytes: int, wish: ResidencySpec
) -> ResidencyPlan | None:
    try:
        return plan_residency(wish, facts, budget(num_bytes))
    except DoesNotFitError:
        return None


budgets = st.integers(0, 500)


@settings(max_examples=40)
@given(any_facts, any_wish, budgets)
def test_no_plan_exceeds_its_budget(
    facts: list[ComponentFacts], wish: ComponentSpec, num_bytes: int
) -> None:
    made = plan_or_none(facts, num_bytes, ResidencySpec(components={"all": wish}))
    if made is not None:
        assert peak_by_hand(made) <= num_bytes
        assert made.peak_bytes == peak_by_hand(made)
        assert made.fits


@settings(max_examples=40)
@given(any_facts, budgets, budgets)
def test_more_memory_is_never_slower(
    facts: list[ComponentFacts], one_bytes: int, other_bytes: int
) -> None:
    less, more = (
        plan_or_none(facts, num_bytes, ResidencySpec())
        for num_bytes in sorted((one_bytes, other_bytes))
    )
    if less is not None:
        assert more is not None
        slower_s = predicted(more, facts)["request_s"] - predicted(less, facts)["request_s"]
        assert slower_s <= 1e-8


@settings(max_examples=40)
@given(any_facts, any_wish, budgets, budgets)
def test_more_memory_is_never_slower_once_the_wish_is_kept(
    facts: list[ComponentFacts], wish: ComponentSpec, one_bytes: int, other_bytes: int
) -> None:
    asked = ResidencySpec(components={"all": wish}, when_it_does_not_fit="refuse")
    less, more = (plan_or_none(facts, n, asked) for n in sorted((one_bytes, other_bytes)))
    if less is not None:
        assert more is not None
        slower_s = predicted(more, facts)["request_s"] - predicted(less, facts)["request_s"]
        assert slower_s <= 1e-8


@settings(max_examples=40)
@given(any_facts, any_wish, budgets)
def test_a_wish_that_is_not_warned_about_is_kept(
    facts: list[ComponentFacts], wish: ComponentSpec, num_bytes: int
) -> None:
    made = plan_or_none(facts, num_bytes, ResidencySpec(components={"all": wish}))
    if made is None or any("does not fit" in warning for warning in made.warnings):
        return
    for one, planned in zip(facts, made.components, strict=True):
        free = {i for i, unit in enumerate(one.layers) if not unit.pinned_to_card}
        resident = {i for i, unit in enumerate(planned.layers) if unit.lifetime is not S} & free
        lives = {planned.layers[i].lifetime for i in resident}
        if wish.resident_layers != "auto":
            asked = resident_indices(one.layers, wish.resident_layers, planned.policy)
            assert resident == asked & free
        if wish.lifetime != "auto":
            assert lives <= {Lifetime(wish.lifetime)}
        if wish.policy != "auto" and one.layers:
            assert planned.policy is Policy(wish.policy)
        assert planned.window == (2 if wish.window == "auto" or not one.layers else wish.window)


@settings(max_examples=40)
@given(any_facts, any_wish, budgets)
def test_structure_of_every_plan(
    facts: list[ComponentFacts], wish: ComponentSpec, num_bytes: int
) -> None:
    made = plan_or_none(facts, num_bytes, ResidencySpec(components={"all": wish}))
    for one, planned in zip(facts, made.components if made else (), strict=False):
        assert planned.trunk.lifetime is not S
        free = [
            unit.lifetime
            for unit, of in zip(planned.layers, one.layers, strict=True)
            if not of.pinned_to_card
        ]
        pinned = [
            unit.lifetime
            for unit, of in zip(planned.layers, one.layers, strict=True)
            if of.pinned_to_card
        ]
        assert set(pinned) <= {P}
        resident = [own for own in free if own is not S]
        assert resident == sorted(resident, key=[P, F].index)  # the earliest are permanent
        assert P not in free or planned.trunk.lifetime is P
        assert planned.why
