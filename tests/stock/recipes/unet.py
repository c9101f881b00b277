"""Pipelines around a UNet: SDXL in float32 and float16, and SD1.5 with a ControlNet."""

from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    DDIMScheduler,
    EulerDiscreteScheduler,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from deployments.upcast import hold_upcast
from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE, picture, woken
from tests.stock.recipes.recipe import Recipe, modules_of

BLOCKS = {"layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}


def _xl_unet() -> Any:
    return UNet2DConditionModel(
        sample_size=8,
        **BLOCKS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=[1, 2],
        attention_head_dim=[2, 4],
        cross_attention_dim=2 * text.WIDTH,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=text.WIDTH + 6 * 8,
        use_linear_projection=True,
    )


def build_sdxl() -> Any:
    return StableDiffusionXLPipeline(
        vae=latent.kl(),
        text_encoder=text.clip(),
        text_encoder_2=text.clip(projected=True),
        tokenizer=text.clip_tokenizer(),
        tokenizer_2=text.clip_tokenizer(),
        unet=_xl_unet(),
        scheduler=EulerDiscreteScheduler(),
        add_watermarker=False,
    )


def build_sdxl_float16() -> Any:
    """With a VAE that the pipeline itself takes to float32 and back in every request."""
    pipeline = build_sdxl()
    for part in modules_of(pipeline).values():
        part.to(torch.float16)
    pipeline.vae.register_to_config(force_upcast=True)
    return pipeline


def build_sdxl_image_float16() -> Any:
    """All three doors: the VAE encodes too, and is taken to float32 for that as well."""
    return StableDiffusionXLImg2ImgPipeline(**build_sdxl_float16().components)


def hold_its_vae_upcast(pipeline: Any) -> None:
    hold_upcast(type(pipeline), modules_of(pipeline).values())


def build_sd15_controlnet() -> Any:
    sizes = {"cross_attention_dim": text.WIDTH, "attention_head_dim": 4}
    down = ("DownBlock2D", "CrossAttnDownBlock2D")
    controlnet = ControlNetModel(
        down_block_types=down, **BLOCKS, **sizes, conditioning_embedding_out_channels=(4, 8, 8, 8)
    )
    return StableDiffusionControlNetPipeline(
        vae=latent.kl(),
        text_encoder=text.clip(),
        tokenizer=text.clip_tokenizer(),
        unet=UNet2DConditionModel(
            sample_size=8,
            down_block_types=down,
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            **BLOCKS,
            **sizes,
        ),
        controlnet=woken(controlnet),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


GUIDED = {"prompt": "a fox", "negative_prompt": "blue", "guidance_scale": 5.0, **SIZE}
PLAIN = {"prompt": "a fox", "guidance_scale": 1.0, **SIZE}

SDXL = Recipe(name="sdxl", build=build_sdxl, calls=(GUIDED, PLAIN))
SDXL_FLOAT16 = Recipe(
    name="sdxl float16",
    build=build_sdxl_float16,
    calls=(GUIDED, PLAIN),
    prepare=hold_its_vae_upcast,
)
SDXL_IMAGE_FLOAT16 = Recipe(
    name="sdxl image-to-image float16",
    build=build_sdxl_image_float16,
    calls=(
        {
            "prompt": "a fox",
            "negative_prompt": "blue",
            "image": torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3)),
            "strength": 1.0,
            "num_inference_steps": 2,
        },
    ),
    prepare=hold_its_vae_upcast,
)
SD15_CONTROLNET = Recipe(
    name="sd15 controlnet",
    build=build_sd15_controlnet,
    calls=({**GUIDED, "image": picture()}, {**GUIDED, "image": picture(), "guess_mode": True}),
)
