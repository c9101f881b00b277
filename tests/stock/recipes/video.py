"""Pipelines that draw frames: Wan 2.2, Wan image-to-video, LTX."""

from typing import Any

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

from tests.stock.recipes import latent, text
from tests.stock.recipes.inputs import SIZE, picture
from tests.stock.recipes.recipe import Recipe


def _wan_transformer(in_channels: int = latent.Z_DIM, image_dim: int | None = None) -> Any:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=in_channels,
        out_channels=latent.Z_DIM,
        text_dim=text.WIDTH,
        freq_dim=16,
        ffn_dim=32,
        num_layers=3,
        rope_max_seq_len=32,
        cross_attn_norm=True,
        image_dim=image_dim,
        added_kv_proj_dim=None if image_dim is None else 24,
    )


def _wan_scheduler() -> Any:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )


def build_wan22() -> Any:
    """Two transformers of one class, used one after the other."""
    return WanPipeline(
        tokenizer=text.piece_tokenizer(),
        text_encoder=text.umt5(),
        vae=latent.wan(),
        scheduler=_wan_scheduler(),
        transformer=_wan_transformer(),
        transformer_2=_wan_transformer(),
        boundary_ratio=0.875,
    )


def build_wan_i2v() -> Any:
    vision = CLIPVisionConfig(
        hidden_size=text.WIDTH,
        intermediate_size=2 * text.WIDTH,
        num_hidden_layers=text.LAYERS,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
        projection_dim=text.WIDTH,
    )
    return WanImageToVideoPipeline(
        tokenizer=text.piece_tokenizer(),
        text_encoder=text.umt5(),
        vae=latent.wan(),
        scheduler=_wan_scheduler(),
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        image_encoder=CLIPVisionModel(vision),
        transformer=_wan_transformer(2 * latent.Z_DIM + 4, image_dim=text.WIDTH),
    )


def build_ltx() -> Any:
    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=latent.ltx(),
        text_encoder=text.t5(),
        tokenizer=text.piece_tokenizer(),
        transformer=LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=16,
            cross_attention_dim=32,
            num_layers=3,
            caption_channels=text.WIDTH,
        ),
    )


ASKED = {"prompt": "a fox", "negative_prompt": "blue", "max_sequence_length": 16, **SIZE}

WAN22 = Recipe(
    name="wan 2.2",
    build=build_wan22,
    calls=(
        {**ASKED, "num_frames": 5, "guidance_scale": 3.0},
        {**ASKED, "num_frames": 1, "guidance_scale": 1.0},
    ),
)
WAN_I2V = Recipe(
    name="wan image-to-video",
    build=build_wan_i2v,
    calls=({**ASKED, "image": picture(), "num_frames": 5, "guidance_scale": 3.0},),
)
LTX = Recipe(
    name="ltx",
    build=build_ltx,
    calls=({**ASKED, "num_frames": 9, "guidance_scale": 3.0},),
)
