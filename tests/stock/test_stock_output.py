"""Guarantee: every stock pipeline draws bit for bit what it draws unmanaged, under every plan.

On a card with not a byte more than the plan needs; after each request only what stands is left.
"""

from typing import Any

import pytest
import torch

from tests.offload.nets import F, P, S
from tests.stock.managed import Stock, managed
from tests.stock.recipes import draw

PLANS = {
    "all permanent": ([P], 2),
    "all forward": ([F], 2),
    "streamed, window of 2": ([S], 2),
    "streamed, window of 3": ([S], 3),
    "mixed thirds": ([P, F, S], 2),
}


@pytest.mark.parametrize(("lifetimes", "window"), PLANS.values(), ids=PLANS.keys())
def test_three_requests_draw_what_the_plain_pipeline_draws(
    stock: Stock, lifetimes, window: int
) -> None:
    plan = stock.tight_plan(lifetimes, window)
    used: set[str] = set()
    with managed(stock, plan) as under:
        for call, expected in stock.requests:
            usage = under.request(call, expected)
            assert (usage.copied_bytes > 0) is (lifetimes != [P])
            used.update(name for name, one in usage.components.items() if one.passes)
    assert used == set(stock.modules)  # the requests reach every part of the pipeline


class CutShort(BaseException):
    """As KeyboardInterrupt and CancelledError: no Exception."""


def cut_short(*_: Any) -> dict[str, Any]:
    raise CutShort


def test_a_request_that_is_cut_short_leaves_the_next_one_right(stock: Stock) -> None:
    call, expected = stock.requests[0]
    plan = stock.tight_plan([P, F, S])
    with managed(stock, plan) as under:
        for _ in range(2):
            with pytest.raises(CutShort), under.residency.request():
                draw(stock.pipeline, {**call, "callback_on_step_end": cut_short})
            assert under.card.usage().allocated_bytes == plan.standing_bytes
            assert under.card.num_copies_in_flight == 0
            under.request(call, expected)


def test_after_all_plans_the_pipeline_is_plain_again(stock: Stock) -> None:
    for call, expected in zip(stock.recipe.calls, stock.plain, strict=True):
        assert torch.equal(draw(stock.pipeline, call), expected)
