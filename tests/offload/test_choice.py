"""The choice is exact: it is held against every combination there is."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.candidates import DIGIT
from offload.choice import Option, choose, peak_bytes, slowness, smallest, within_one_percent

small = st.integers(0, 9)
# Nanoseconds of which some are within one percent of each other.
around = st.sampled_from([0, 1, 300, 302, 303, 304, 900, 905, 909, 910])


def option(standing_bytes: int, running_bytes: int, slowness: int, traffic: int) -> Option:
    return Option(standing_bytes, running_bytes, slowness, traffic, ())


some = st.lists(st.builds(option, small, small, around, small), min_size=1, max_size=6)


@settings(max_examples=400)
@given(st.lists(some, max_size=4), st.integers(0, 40))
def test_the_choice_is_the_best_of_all_combinations(
    options: list[list[Option]], budget_bytes: int
) -> None:
    fitting = [picks for picks in product(*options) if peak_bytes(picks) <= budget_bytes]
    choice = choose(options, budget_bytes)
    if not fitting:
        assert choice is None
        return
    assert choice is not None
    least = min(map(slowness, fitting))
    assert slowness(choice.fastest) == least
    alike = [picks for picks in fitting if 100 * slowness(picks) <= 101 * least]

    def key(picks: tuple[Option, ...]) -> tuple[int, int]:
        return sum(one.traffic for one in picks), peak_bytes(picks)

    assert choice.chosen in alike
    assert key(choice.chosen) == min(map(key, alike))


@given(st.lists(some, max_size=4))
def test_the_smallest_is_the_least_peak_of_all_combinations(options: list[list[Option]]) -> None:
    assert peak_bytes(smallest(options)) == min(map(peak_bytes, product(*options)))


def test_one_percent_is_of_the_time_and_never_of_the_wish() -> None:
    assert within_one_percent(1000) == 1010
    assert within_one_percent(99) == 99
    lost = 700 * DIGIT
    assert within_one_percent(lost + 1000) == lost + 1010


def test_a_lost_wish_is_never_made_up_for_by_traffic() -> None:
    keeps, loses = option(5, 0, 100, 9), option(0, 0, DIGIT, 0)
    choice = choose([[keeps, loses]], 5)
    assert choice is not None
    assert choice.chosen == (keeps,)


@pytest.mark.parametrize(("budget_bytes", "held"), [(6, [6, 0]), (5, [0, 1])])
def test_costs_far_beyond_a_machine_word_stay_exact(budget_bytes: int, held: list[int]) -> None:
    base = 1 << 300
    options = [
        [option(0, 0, 3 * base + 1, 0), option(5, 0, 3 * base + 2, 0), option(6, 0, base, 0)],
        [option(0, 0, base, 0), option(1, 0, base - base // 50, 0)],
    ]
    choice = choose(options, budget_bytes)
    assert choice is not None
    assert [one.standing_bytes for one in choice.fastest] == held
