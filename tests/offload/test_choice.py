"""The choice is exact: it is held against every combination there is."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from offload.choice import Candidate, choose, peak_bytes, smallest
from offload.plan import ComponentPlan, Lifetime, UnitPlan

TRUNK = UnitPlan(name="trunk", list_name=None, num_bytes=0, lifetime=Lifetime.FORWARD)
PLAN = ComponentPlan(name="c", trunk=TRUNK, layers=())


def candidate(standing_bytes: int, running_bytes: int, cost: int) -> Candidate:
    return Candidate(
        plan=PLAN, standing_bytes=standing_bytes, running_bytes=running_bytes, cost=cost
    )


small = st.integers(0, 9)
some = st.lists(st.builds(candidate, small, small, small), min_size=1, max_size=5)


@given(st.lists(some, max_size=5), st.integers(0, 40))
def test_the_choice_is_the_best_of_all_combinations(
    options: list[list[Candidate]], budget_bytes: int
) -> None:
    every = [(sum(c.cost for c in picks), peak_bytes(picks)) for picks in product(*options)]
    fitting = [key for key in every if key[1] <= budget_bytes]
    chosen = choose(options, budget_bytes)
    if not fitting:
        assert chosen is None
        return
    assert chosen is not None
    assert (sum(c.cost for c in chosen), peak_bytes(chosen)) == min(fitting)
    assert all(pick in few for pick, few in zip(chosen, options, strict=True))


@given(st.lists(some, max_size=5))
def test_the_smallest_is_the_least_peak_of_all_combinations(options: list[list[Candidate]]) -> None:
    assert peak_bytes(smallest(options)) == min(map(peak_bytes, product(*options)))


def test_costs_far_beyond_a_machine_word_stay_exact() -> None:
    base = 1 << 300
    options = [
        [candidate(0, 0, 3 * base + 1), candidate(5, 0, 3 * base), candidate(6, 0, base)],
        [candidate(0, 0, base), candidate(1, 0, base - 1)],
    ]
    chosen = choose(options, 6)
    assert chosen is not None
    assert [c.standing_bytes for c in chosen] == [6, 0]
    chosen = choose(options, 5)
    assert chosen is not None
    assert sum(c.cost for c in chosen) == 4 * base
