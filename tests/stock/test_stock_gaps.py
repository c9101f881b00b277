"""Guarantee: what a component holds between two of its runs is moved once where there is room.

SD3 encodes for the prompt and again for the negative one; a ControlNet and its network take turns
in every step. With one byte too little they move again, and the picture is the same.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offload import ComponentPlan, RequestUsage, ResidencyPlan
from tests.offload.nets import F, plan_for
from tests.stock.managed import Stock, managed, stock_of
from tests.stock.recipes import FLUX_CONTROLNET, SD3, SD15_CONTROLNET, Recipe

STEPS = 3
TAKING_TURNS = {
    "sd3 encoders": (SD3, ("text_encoder", "text_encoder_2", "text_encoder_3"), 2),
    "flux controlnet": (FLUX_CONTROLNET, ("controlnet", "transformer"), STEPS),
    "sd15 controlnet": (SD15_CONTROLNET, ("controlnet", "unet"), STEPS),
}
cases = pytest.mark.parametrize(
    ("recipe", "names", "turns"), TAKING_TURNS.values(), ids=TAKING_TURNS.keys()
)


def forward_plan(stock: Stock, names: Sequence[str], spare_bytes: int = 0) -> ResidencyPlan:
    """All forward, with room for those components at once and ``spare_bytes`` more."""
    plan = plan_for(stock.modules, [F])
    together = sum(plan.running_bytes_of(plan[name]) for name in names)
    needed = plan.standing_bytes + together + spare_bytes
    assert needed >= plan.peak_bytes
    return replace(plan, budget=replace(plan.budget, num_bytes=needed))


def usages(stock: Stock, plan: ResidencyPlan) -> list[RequestUsage]:
    call = {**stock.recipe.calls[0], "num_inference_steps": STEPS}
    expected = stock.plain_draw(call)
    with managed(stock, plan, memory_bytes=plan.budget.num_bytes) as under:
        return [under.request(call, expected) for _ in range(3)]


def weight_bytes(component: ComponentPlan) -> int:
    return sum(unit.num_bytes for unit in component.units)


@cases
def test_a_set_that_fits_beside_the_other_is_moved_once(
    recipe: Recipe, names: tuple[str, ...], turns: int
) -> None:
    stock = stock_of(recipe)
    plan = forward_plan(stock, names)
    for usage in usages(stock, plan):
        for name in names:
            assert usage.components[name].passes == turns
            assert usage.components[name].copied_bytes == weight_bytes(plan[name])
            assert usage.components[name].wasted_bytes == 0


@cases
def test_with_one_byte_too_little_some_set_is_moved_again(
    recipe: Recipe, names: tuple[str, ...], turns: int
) -> None:
    stock = stock_of(recipe)
    plan = forward_plan(stock, names, spare_bytes=-1)
    weights = [weight_bytes(plan[name]) for name in names]
    for usage in usages(stock, plan):
        moved = [usage.components[name].copied_bytes for name in names]
        assert sum(moved) > sum(weights)
        for copied_bytes, own_bytes in zip(moved, weights, strict=True):
            assert copied_bytes in {times * own_bytes for times in range(1, turns + 1)}


@pytest.mark.parametrize("recipe", [FLUX_CONTROLNET, SD15_CONTROLNET], ids=lambda r: r.name)
def test_a_controlnet_without_room_moves_in_every_step(recipe: Recipe) -> None:
    """On the smallest card of all, each gives way to the other."""
    stock = stock_of(recipe)
    plan = stock.tight_plan([F])
    names = ("controlnet", "unet" if "unet" in stock.modules else "transformer")
    for usage in usages(stock, plan):
        for name in names:
            assert usage.components[name].copied_bytes == STEPS * weight_bytes(plan[name])


@cases
def test_a_longer_request_holds_its_sets_too(
    recipe: Recipe, names: tuple[str, ...], turns: int
) -> None:
    """A request with more steps than the one before learnt its length from nobody."""
    stock = stock_of(recipe)
    plan = forward_plan(stock, names)
    calls = [{**recipe.calls[0], "num_inference_steps": steps} for steps in (2, 5, 2)]
    expected = [stock.plain_draw(call) for call in calls]
    with managed(stock, plan, memory_bytes=plan.budget.num_bytes) as under:
        for call, picture in zip(calls, expected, strict=True):
            usage = under.request(call, picture)
            for name in names:  # at most once too often, where the end came later than expected
                assert usage.components[name].copied_bytes <= 2 * weight_bytes(plan[name])
