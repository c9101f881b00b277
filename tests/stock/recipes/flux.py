"""FLUX, alone and with a ControlNet."""

from typing import Any

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)

from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE, picture, woken
from tests.stock.recipes.recipe import Recipe


def _flux_sizes() -> dict[str, Any]:
    return {
        "patch_size": 1,
        "in_channels": 16,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": text.WIDTH,
        "pooled_projection_dim": text.WIDTH,
        "axes_dims_rope": (4, 6, 6),
        "guidance_embeds": True,
    }


def _flux_parts() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "text_encoder": text.clip(),
        "tokenizer": text.clip_tokenizer(),
        "text_encoder_2": text.t5(),
        "tokenizer_2": text.piece_tokenizer(),
        "vae": latent.flux_kl(),
        "transformer": FluxTransformer2DModel(num_layers=2, num_single_layers=3, **_flux_sizes()),
    }


def build_flux() -> Any:
    return FluxPipeline(**_flux_parts())


def build_flux_controlnet() -> Any:
    controlnet = FluxControlNetModel(num_layers=2, num_single_layers=1, **_flux_sizes())
    return FluxControlNetPipeline(controlnet=woken(controlnet), **_flux_parts())


FLUX = Recipe(
    name="flux",
    build=build_flux,
    calls=(
        {"prompt": "a fox", "max_sequence_length": 16, **SIZE},
        {
            "prompt": "a fox",
            "negative_prompt": "blue",
            "true_cfg_scale": 2.0,
            "max_sequence_length": 16,
            **SIZE,
        },
    ),
)
FLUX_CONTROLNET = Recipe(
    name="flux controlnet",
    build=build_flux_controlnet,
    calls=(
        {
            "prompt": "a fox",
            "control_image": picture(),
            "controlnet_conditioning_scale": 0.7,
            "max_sequence_length": 16,
            **SIZE,
        },
    ),
)
