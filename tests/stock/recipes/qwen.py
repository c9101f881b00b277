"""Qwen-Image and Qwen-Image-2.1, whose text encoders have a vision tower."""

from typing import Any

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from deployments.demo import components as demo
from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE, picture
from tests.stock.recipes.recipe import Recipe


def build_qwen_image() -> Any:
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=latent.qwen_image(),
        text_encoder=text.qwen25_vl(),
        tokenizer=text.qwen2_tokenizer(),
        transformer=QwenImageTransformer2DModel(
            in_channels=4 * latent.Z_DIM,
            out_channels=latent.Z_DIM,
            num_layers=3,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=text.WIDTH,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def build_qwen_image_21() -> Any:
    processor = demo.new_processor(["a red circle", "two green triangles"])
    return QwenImage21Pipeline(
        scheduler=demo.new_scheduler(),
        vae=demo.new_vae(),
        text_encoder=demo.new_text_encoder(processor.tokenizer),
        processor=processor,
        transformer=demo.new_transformer(3),
    )


QWEN_IMAGE = Recipe(
    name="qwen-image",
    build=build_qwen_image,
    calls=(
        {"prompt": "a fox", **SIZE},
        {
            "prompt": "a fox",
            "negative_prompt": "blue",
            "true_cfg_scale": 3.0,
            **SIZE,
        },
    ),
)
QWEN_IMAGE_21 = Recipe(
    name="qwen-image-2.1",
    build=build_qwen_image_21,
    calls=(
        {"prompt": "a red circle", **SIZE},
        {"prompt": "a red circle", "image": picture(64, 64), "output_resolution": 64, **SIZE},
        {
            "prompt": "two",
            "negative_prompt": "blue",
            "true_cfg_scale": 2.0,
            "use_kv_cache": False,
            **SIZE,
        },
    ),
)
