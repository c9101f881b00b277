"""Guarantee: diffusers' caches work under management, enabled before attach or after it.

What is drawn equals, bit for bit, the unmanaged pipeline with the same cache, and a block that a
cache skips is neither counted nor moved.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, PyramidAttentionBroadcastConfig

from offload import ComponentPlan
from tests.offload.nets import F, P, S
from tests.stock.managed import Managed, Stock, managed, stock_of
from tests.stock.recipes import FLUX, LTX, QWEN_IMAGE, WAN22, WAN_I2V

CACHED = (FLUX, QWEN_IMAGE, WAN22, WAN_I2V, LTX)  # stock classes that both caches know
STEPS = 4


def first_block(pipeline: Any) -> Any:
    """From the second step on nothing but the first block of all is computed."""
    return FirstBlockCacheConfig(threshold=1e9)


def attention_broadcast(pipeline: Any) -> Any:
    """Every other step takes its attentions from the step before: parts of blocks are skipped."""
    every = (-1, 1001)  # all timesteps
    return PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        cross_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=every,
        cross_attention_timestep_skip_range=every,
        current_timestep_callback=lambda: pipeline.current_timestep,
    )


CACHES = {"first block": first_block, "attention broadcast": attention_broadcast}
PLANS = {"forward": [F], "streamed": [S], "mixed thirds": [P, F, S]}


@contextmanager
def cached(stock: Stock, make: Callable[[Any], Any]) -> Iterator[None]:
    """The cache on every transformer of the pipeline."""
    networks = [stock.modules[name] for name in stock.modules if name.startswith("transformer")]
    for network in networks:
        network.enable_cache(make(stock.pipeline))
    try:
        yield
    finally:
        for network in networks:
            network.disable_cache()


def call_of(stock: Stock) -> dict[str, Any]:
    return {**stock.recipe.calls[0], "num_inference_steps": STEPS}


@pytest.fixture(params=CACHED, ids=[recipe.name for recipe in CACHED])
def stock(request: pytest.FixtureRequest) -> Stock:
    return stock_of(request.param)


def expectation(stock: Stock, make: Callable[[Any], Any]) -> torch.Tensor:
    uncached = stock.plain_draw(call_of(stock))
    with cached(stock, make):
        expected = stock.plain_draw(call_of(stock))
    assert not torch.equal(expected, uncached)  # the cache matters here
    return expected


@pytest.mark.parametrize("enabled", ["before attach", "after attach"])
@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES.keys())
def test_a_cached_pipeline_draws_the_same_under_every_plan(
    stock: Stock, make: Callable[[Any], Any], enabled: str
) -> None:
    expected = expectation(stock, make)
    for lifetimes in PLANS.values():
        plan = stock.tight_plan(lifetimes)
        if enabled == "before attach":
            with cached(stock, make), managed(stock, plan) as under:
                draw_twice(under, stock, expected)
        else:
            with managed(stock, plan) as under, cached(stock, make):
                draw_twice(under, stock, expected)


def draw_twice(under: Managed, stock: Stock, expected: torch.Tensor) -> None:
    for _ in range(2):
        under.request(call_of(stock), expected)


def test_disabled_while_managed_the_pipeline_draws_as_without_the_cache(stock: Stock) -> None:
    uncached = stock.plain_draw(call_of(stock))
    expected = expectation(stock, first_block)
    with ExitStack() as stack:
        cache = stack.enter_context(ExitStack())
        cache.enter_context(cached(stock, first_block))
        under = stack.enter_context(managed(stock, stock.tight_plan([S])))
        under.request(call_of(stock), expected)
        cache.close()
        under.request(call_of(stock), uncached)
    assert torch.equal(stock.plain_draw(call_of(stock)), uncached)


def test_detached_with_a_cache_the_pipeline_keeps_it(stock: Stock) -> None:
    uncached = stock.plain_draw(call_of(stock))
    expected = expectation(stock, first_block)
    with ExitStack() as stack:
        with managed(stock, stock.tight_plan([S])) as under:
            stack.enter_context(cached(stock, first_block))
            under.request(call_of(stock), expected)
        assert torch.equal(stock.plain_draw(call_of(stock)), expected)
        with managed(stock, stock.tight_plan([F])) as under:
            under.request(call_of(stock), expected)
    assert torch.equal(stock.plain_draw(call_of(stock)), uncached)


@pytest.mark.parametrize("enabled", ["before attach", "after attach"])
def test_a_skipped_block_is_neither_counted_nor_moved(enabled: str) -> None:
    """Of FLUX's five blocks four are computed in the first step only."""
    stock = stock_of(FLUX)
    expected = expectation(stock, first_block)
    for lifetimes, moved_at_most in (([F], forward_bytes), ([S], streamed_bytes)):
        plan = stock.tight_plan(lifetimes)
        limit = moved_at_most(plan["transformer"])
        with ExitStack() as stack:
            if enabled == "before attach":
                stack.enter_context(cached(stock, first_block))
            under = stack.enter_context(managed(stock, plan))
            if enabled == "after attach":
                stack.enter_context(cached(stock, first_block))
            for _ in range(3):
                usage = under.request(call_of(stock), expected).components["transformer"]
                assert usage.copied_bytes - usage.wasted_bytes <= limit
                # The first skip comes as a surprise, which costs a window at most.
                assert usage.wasted_bytes <= plan["transformer"].window_bytes


def forward_bytes(plan: ComponentPlan) -> int:
    """Everything once."""
    return sum(unit.num_bytes for unit in plan.units)


def streamed_bytes(plan: ComponentPlan) -> int:
    """The first block in every step, the others in the first step, the trunk once."""
    return forward_bytes(plan) + (STEPS - 1) * plan.layers[0].num_bytes
