"""Stable Diffusion 3: three text encoders, each called for the prompt and the negative one."""

from typing import Any

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)

from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE
from tests.stock.recipes.recipe import Recipe


def build_sd3() -> Any:
    return StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=text.clip(projected=True),
        tokenizer=text.clip_tokenizer(),
        text_encoder_2=text.clip(projected=True),
        tokenizer_2=text.clip_tokenizer(),
        text_encoder_3=text.t5(2 * text.WIDTH),
        tokenizer_3=text.piece_tokenizer(),
        vae=latent.flux_kl(),
        transformer=SD3Transformer2DModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            num_layers=3,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=2 * text.WIDTH,
            caption_projection_dim=32,
            pooled_projection_dim=2 * text.WIDTH,
            pos_embed_max_size=16,
            dual_attention_layers=(0,),
            qk_norm="rms_norm",
        ),
    )


SD3 = Recipe(
    name="sd3",
    build=build_sd3,
    calls=(
        {
            "prompt": "a fox",
            "negative_prompt": "blue",
            "guidance_scale": 4.0,
            "max_sequence_length": 16,
            **SIZE,
        },
        {"prompt": "a fox", "guidance_scale": 1.0, "max_sequence_length": 16, **SIZE},
    ),
)
