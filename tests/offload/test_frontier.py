"""The exact sum under limits, held against every sum there is."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from offload.frontier import Limits, cheapest
from offload.price import priced
from offload.stairs import Point, hulls_of, relax

small = st.integers(0, 12)
points = st.builds(
    lambda standing, cost, side: Point(standing, cost, cost, side, 0, 0), *[small] * 3
)
groups = st.lists(st.lists(points, min_size=1, max_size=5), min_size=1, max_size=4)


@given(groups, st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.booleans())
def test_a_sum_is_the_cheapest_of_all_at_any_price_of_the_side(
    several: list[list[Point]], standing_bytes: int, side: int, price: int, is_known: bool
) -> None:
    fitting = [
        (sum(p.cost for p in picks), sum(p.standing_bytes for p in picks))
        for picks in product(*several)
        if sum(p.standing_bytes for p in picks) <= standing_bytes
        and sum(p.side for p in picks) <= side
    ]
    lensed = [priced(few, price) for few in several]
    relaxed = relax(hulls_of(lensed), standing_bytes)
    if relaxed is None:
        assert not fitting
        return
    known = min(fitting)[0] + price * side if is_known and fitting else None
    found = cheapest(lensed, Limits(standing_bytes, side, known), relaxed)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert (sum(p.cost for p in found), sum(p.standing_bytes for p in found)) == min(fitting)
    assert relaxed.floor - price * side <= min(fitting)[0]


def test_few_sums_still_fit() -> None:
    several = [priced([Point(i, 9 - i, 9 - i, 0, 0, i) for i in range(9)], 0) for _ in range(3)]
    relaxed = relax(hulls_of(several), 12)
    assert relaxed is not None
    found = cheapest(several, Limits(12, 0, None), relaxed, most_sums=2)
    assert found is not None
    assert sum(point.standing_bytes for point in found) <= 12
