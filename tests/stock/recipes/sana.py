"""Sana: a Gemma text encoder, and an autoencoder whose lists hold Sequentials."""

from typing import Any

from diffusers import DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel

from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE
from tests.stock.recipes.recipe import Recipe


def build_sana() -> Any:
    return SanaPipeline(
        tokenizer=text.gemma_tokenizer(),
        text_encoder=text.gemma2(),
        vae=latent.dc(),
        transformer=SanaTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=4,
            attention_head_dim=8,
            num_layers=3,
            num_cross_attention_heads=4,
            cross_attention_head_dim=8,
            cross_attention_dim=32,
            caption_channels=text.WIDTH,
            sample_size=16,
        ),
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )


SANA = Recipe(
    name="sana",
    build=build_sana,
    calls=(
        {
            "prompt": "a fox",
            "negative_prompt": "blue",
            "guidance_scale": 3.0,
            "use_resolution_binning": False,
            "max_sequence_length": 16,
            "complex_human_instruction": None,
            **SIZE,
        },
    ),
)
