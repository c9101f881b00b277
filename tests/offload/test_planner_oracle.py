"""Guarantee: no plan is better than the planner's, held against every plan there is."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.errors import DoesNotFitError
from offload.facts import ComponentFacts, UnitFacts
from offload.plan import ResidencyPlan
from offload.planner import plan_residency
from offload.schedule import predict
from offload.spec import ComponentSpec, ResidencySpec
from tests.offload.facts_kit import budget
from tests.offload.oracle import Whole, every_whole, together, way_of, weigh

RATE = 1000.0
SAME_S = 1e-8  # nanoseconds are rounded

times = st.sampled_from([0.0, 0.002, 0.005, 0.01, 0.03])
# A copy of a few milliseconds is then near one percent of a request.
long_times = st.one_of(times, st.sampled_from([0.2, 0.5, 1.0]))
some_units = st.builds(
    lambda size, compute_s, first_s, uses: UnitFacts(
        name="blocks.0",
        list_name="blocks",
        num_bytes=size,
        compute_s=compute_s,
        first_s=first_s,
        uses=uses,
    ),
    st.integers(1, 12),
    times,
    st.one_of(st.none(), times),
    st.sampled_from([0, 1, 1, 1, 2]),
)
NUM_LAYERS = {1: 6, 2: 4, 3: 2, 4: 2}  # at most, by components: the product is enumerated


@st.composite
def several_facts(draw: st.DrawFn) -> list[ComponentFacts]:
    count = draw(st.integers(1, 4))
    names = [f"c{i}" for i in range(count)]
    return [draw(some_facts(name, names, NUM_LAYERS[count])) for name in names]


@st.composite
def some_facts(draw: st.DrawFn, name: str, names: Sequence[str], most: int) -> ComponentFacts:
    passes = draw(st.integers(1, 4))
    others = [other for other in names if other != name]
    gap = st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True).map(tuple)
    gaps = st.lists(gap, max_size=passes - 1) if others and passes > 1 else st.just([])
    return ComponentFacts(
        name=name,
        group="other",
        trunk=UnitFacts(
            name="trunk",
            list_name=None,
            num_bytes=draw(st.integers(0, 12)),
            compute_s=draw(long_times),
            first_s=draw(st.one_of(st.none(), long_times)),
        ),
        layers=tuple(draw(st.lists(some_units, max_size=most))),
        passes=passes,
        gaps=tuple(draw(gaps)),
        activation_bytes=draw(st.integers(0, 12)),
        buffer_bytes=draw(st.integers(0, 3)),
    )


def as_found(made: ResidencyPlan, facts: Sequence[ComponentFacts]) -> Whole:
    return together(facts, [weigh(one, way_of(made[one.name]), RATE) for one in facts])


def hold_against_all(facts: list[ComponentFacts], num_bytes: int, window: int = 2) -> None:
    spec = ResidencySpec(
        components={"all": ComponentSpec(window="auto" if window == 2 else window)}
    )
    fitting = every_whole(facts, num_bytes, RATE, window)
    if not fitting:
        with pytest.raises(DoesNotFitError):
            plan_residency(spec, facts, budget(num_bytes, RATE))
        return
    made = plan_residency(spec, facts, budget(num_bytes, RATE))
    found = as_found(made, facts)
    assert found.peak == made.peak_bytes <= num_bytes
    for one in facts:
        own = weigh(one, way_of(made[one.name]), RATE)
        ahead = predict(one, made[one.name], RATE)
        assert ahead.request_s == pytest.approx(own.seconds, abs=SAME_S)
        assert ahead.h2d_bytes == own.moved
    least_s = min(whole.seconds for whole in fitting)
    assert found.seconds <= 1.01 * least_s + SAME_S
    best = min(
        (whole.moved, whole.streamed, whole.peak)
        for whole in fitting
        if whole.seconds <= 1.01 * least_s - SAME_S or whole.seconds == least_s
    )
    assert (found.moved, found.streamed, found.peak) <= best


@settings(max_examples=150)
@given(several_facts(), st.integers(0, 120))
def test_no_plan_is_better(facts: list[ComponentFacts], num_bytes: int) -> None:
    hold_against_all(facts, num_bytes)


@st.composite
def slow_facts(draw: st.DrawFn) -> list[ComponentFacts]:
    """Requests of a second or so: what copies show of themselves is around a percent of it."""
    facts = [draw(some_facts(name, [name], 4)) for name in ("c0", "c1")]
    trunks = [
        replace(one.trunk, compute_s=draw(st.sampled_from([0.2, 0.5, 1.0])), first_s=None)
        for one in facts
    ]
    return [replace(one, trunk=trunk) for one, trunk in zip(facts, trunks, strict=True)]


@settings(max_examples=150)
@given(slow_facts(), st.integers(20, 90))
def test_no_plan_is_better_where_a_percent_decides(
    facts: list[ComponentFacts], num_bytes: int
) -> None:
    hold_against_all(facts, num_bytes)


@settings(max_examples=30)
@given(st.lists(some_facts("c0", ["c0"], 6), min_size=1, max_size=1), st.integers(0, 60))
def test_no_plan_with_a_wider_window_is_better(facts: list[ComponentFacts], num_bytes: int) -> None:
    if len(facts[0].layers) > 0:
        hold_against_all(facts, num_bytes, window=3)
