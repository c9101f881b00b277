"""Guarantee: in stock pipelines no weight is read outside its layer's call, so nothing is noticed.

A false finding would move a layer's weights to the trunk at every start.
"""

import pytest

from offload.guard import DispatchGuard
from tests.offload.nets import F, S
from tests.stock.managed import Stock, managed


@pytest.mark.parametrize("lifetime", [F, S], ids=str)
def test_the_warm_up_finds_nothing_and_the_guard_sees_no_read(stock: Stock, lifetime) -> None:
    call, expected = stock.requests[0]
    with managed(stock, stock.tight_plan([lifetime], 2)) as under:
        with under.residency.outside_reads() as found:
            under.request(call, expected)
        assert found == {}
        with DispatchGuard() as guard:
            guard.watch(under.residency._components)
            under.request(call, expected)
