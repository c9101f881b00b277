"""Builders of tiny stock pipelines: random weights from configs, no checkpoint, no hub."""

from tests.stock.recipes.flux import FLUX, FLUX_CONTROLNET
from tests.stock.recipes.qwen import QWEN_IMAGE, QWEN_IMAGE_21
from tests.stock.recipes.recipe import Recipe, draw, modules_of
from tests.stock.recipes.sana import SANA
from tests.stock.recipes.stable3 import SD3
from tests.stock.recipes.unet import SD15_CONTROLNET, SDXL, SDXL_FLOAT16, SDXL_IMAGE_FLOAT16
from tests.stock.recipes.video import LTX, WAN22, WAN_I2V

RECIPES = (
    QWEN_IMAGE_21,
    QWEN_IMAGE,
    FLUX,
    SDXL,
    SDXL_FLOAT16,
    SDXL_IMAGE_FLOAT16,
    SD3,
    WAN22,
    WAN_I2V,
    LTX,
    SANA,
    FLUX_CONTROLNET,
    SD15_CONTROLNET,
)

__all__ = [
    "FLUX",
    "FLUX_CONTROLNET",
    "LTX",
    "QWEN_IMAGE",
    "QWEN_IMAGE_21",
    "RECIPES",
    "SANA",
    "SD3",
    "SD15_CONTROLNET",
    "SDXL",
    "SDXL_FLOAT16",
    "SDXL_IMAGE_FLOAT16",
    "WAN22",
    "WAN_I2V",
    "Recipe",
    "draw",
    "modules_of",
]
