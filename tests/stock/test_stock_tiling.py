"""Guarantee: a VAE that works tile by tile or picture by picture gives the same under every plan.

Its blocks run several times within one call, and whole calls come one after the other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLQwenImage21

from tests.offload.nets import F, P, S
from tests.stock.managed import Stock, managed, stock_of
from tests.stock.recipes import LTX, QWEN_IMAGE, QWEN_IMAGE_21, SANA, SDXL, WAN22, WAN_I2V

RECIPES = (SDXL, QWEN_IMAGE, QWEN_IMAGE_21, WAN22, WAN_I2V, LTX, SANA)
PLANS = {"forward": [F], "streamed": [S], "mixed thirds": [P, F, S]}


def latent_of(vae: Any) -> int:
    """Pixels a side; the pictures here have four, a tile three, and the next begins at two."""
    return 16 if isinstance(vae, AutoencoderKLQwenImage21) else 8


@contextmanager
def tiled(vae: Any) -> Iterator[None]:
    tile, stride = 3 * latent_of(vae), 2 * latent_of(vae)
    if isinstance(vae, AutoencoderKL):  # it takes no sizes
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = tile, 3
    else:
        vae.enable_tiling(
            tile_sample_min_height=tile,
            tile_sample_min_width=tile,
            tile_sample_stride_height=stride,
            tile_sample_stride_width=stride,
        )
    yield
    vae.disable_tiling()


@contextmanager
def sliced(vae: Any) -> Iterator[None]:
    vae.enable_slicing()
    yield
    vae.disable_slicing()


@pytest.fixture(params=RECIPES, ids=[recipe.name for recipe in RECIPES])
def stock(request: pytest.FixtureRequest) -> Stock:
    return stock_of(request.param)


def call_of(stock: Stock) -> dict[str, Any]:
    """Two pictures at once, of two prompts."""
    first = stock.recipe.calls[0]
    prompts = {name: [first[name]] * 2 for name in ("prompt", "negative_prompt") if name in first}
    side = 4 * latent_of(stock.pipeline.vae)
    return {**first, **prompts, "height": side, "width": side}


@contextmanager
def counted(vae: Any) -> Iterator[list[None]]:
    """How often the decoder runs."""
    calls: list[None] = []
    hook = vae.decoder.register_forward_pre_hook(lambda module, args: calls.append(None))
    yield calls
    hook.remove()


@pytest.mark.parametrize("setting", [tiled, sliced])
def test_tiles_and_slices_are_drawn_the_same(stock: Stock, setting: Callable[[Any], Any]) -> None:
    vae, call = stock.pipeline.vae, call_of(stock)
    with counted(vae) as whole:
        stock.plain_draw(call)
    with setting(vae):
        with counted(vae) as parts:
            expected = stock.plain_draw(call)
        assert len(parts) > len(whole)
        for lifetimes in PLANS.values():
            with managed(stock, stock.tight_plan(lifetimes)) as under:
                for _ in range(2):
                    under.request(call, expected)


@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
def test_tiling_may_be_switched_on_and_off_while_managed(lifetimes) -> None:
    stock = stock_of(SDXL)
    vae, call = stock.pipeline.vae, call_of(stock)
    whole = stock.plain_draw(call)
    with tiled(vae):
        tiles = stock.plain_draw(call)
    assert not torch.equal(tiles, whole)
    with managed(stock, stock.tight_plan(lifetimes)) as under:
        for _ in range(2):
            under.request(call, whole)
            with tiled(vae):
                under.request(call, tiles)
