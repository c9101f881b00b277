"""Guarantee: a VAE that a pipeline would convert in mid-request is refused, never half done."""

import pytest

from offload import StateError
from tests.offload.nets import F, P, S
from tests.stock.managed import managed, stock_of
from tests.stock.recipes import SDXL_FLOAT16, Recipe, draw

NOT_HELD = Recipe(name="sdxl float16", build=SDXL_FLOAT16.build, calls=SDXL_FLOAT16.calls[:1])


@pytest.mark.parametrize("lifetimes", [[P], [F], [S]], ids=["permanent", "forward", "streamed"])
def test_a_vae_that_is_not_held_upcast_is_refused_by_name(lifetimes) -> None:
    stock = stock_of(NOT_HELD)
    [(call, expected), *_] = stock.requests
    plan = stock.tight_plan(lifetimes)
    with managed(stock, plan) as under:
        with (
            pytest.raises(StateError, match=r"vae is managed and stays torch\.float16 .*suspended"),
            under.residency.request(),
        ):
            draw(stock.pipeline, call)
        assert under.card.usage().allocated_bytes == plan.standing_bytes
    assert stock.pipeline.vae.dtype == stock.pipeline.unet.dtype
    assert stock.plain_draw(call).equal(expected)
