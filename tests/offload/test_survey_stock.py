"""Guarantee: block lists of stock diffusers and transformers classes are found, undeclared.

Full-size configs stand on the meta device, which costs no memory. Numbers are counts from the
configs; shares of bytes are those of the rule as written in the design.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache

import diffusers
import pytest
import torch
import transformers
from torch import nn

from offload import survey_component
from offload.survey import _bytes, _Finder


def qwen_image_21_text_encoder() -> nn.Module:
    """Qwen3-VL 8B: 27 vision blocks, 3 deepstack mergers, 36 text layers."""
    config = transformers.Qwen3VLConfig(
        text_config={"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288},
        vision_config={
            "depth": 27,
            "deepstack_visual_indexes": [8, 16, 24],
            "out_hidden_size": 4096,
        },
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def sdxl_unet() -> nn.Module:
    return diffusers.UNet2DConditionModel(
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=[1, 2, 10],
        attention_head_dim=[5, 10, 20],
        cross_attention_dim=2048,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
    )


def sd_vae() -> nn.Module:
    return diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )


FULL_SIZE: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "Qwen-Image-2.1's transformer": (
        diffusers.QwenImage21Transformer2DModel,
        {"transformer_blocks": 32},
    ),
    "Qwen-Image-2.1's text encoder": (
        qwen_image_21_text_encoder,
        {
            "model.visual.blocks": 27,
            "model.visual.deepstack_merger_list": 3,
            "model.language_model.layers": 36,
        },
    ),
    "Qwen-Image": (diffusers.QwenImageTransformer2DModel, {"transformer_blocks": 60}),
    "FLUX": (
        diffusers.FluxTransformer2DModel,
        {"transformer_blocks": 19, "single_transformer_blocks": 38},
    ),
    "Wan 14B": (diffusers.WanTransformer3DModel, {"blocks": 40}),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_lists_of_a_full_size_component(name: str) -> None:
    make, expected = FULL_SIZE[name]
    layers, trunk_share, largest_share = shares(make)
    assert Counter(list_name for list_name, _, _ in layers) == expected
    assert trunk_share < 0.14  # the text encoder's embedding and its untied head are an eighth
    assert largest_share < 0.05


@pytest.mark.parametrize(
    "make",
    [sdxl_unet, sd_vae, diffusers.AutoencoderKLWan, diffusers.AutoencoderKLQwenImage21],
)
def test_stages_that_dominate_are_opened(make: Callable[[], nn.Module]) -> None:
    """No layer of a staged network is above an eighth, and most of the bytes are in layers."""
    _, trunk_share, largest_share = shares(make)
    assert largest_share <= 1 / 8
    assert trunk_share < 0.15


def test_sdxl_falls_into_transformer_blocks() -> None:
    layers, trunk_share, largest_share = shares(sdxl_unet)
    lists = Counter(list_name for list_name, _, _ in layers)
    assert sum(n for name, n in lists.items() if name.endswith(".transformer_blocks")) == 6 * 10
    assert trunk_share < 0.02
    assert largest_share < 0.05  # unopened, one stage is 47 %


@cache
def shares(
    make: Callable[[], nn.Module],
) -> tuple[list[tuple[str, str, nn.Module]], float, float]:
    """Layers as found, and the parts of all bytes that the trunk and the largest layer are."""
    with torch.device("meta"):
        root = make()
    finder = _Finder(root)
    layers = finder.layers()
    sizes = [_bytes(entry) for _, _, entry in layers]
    return layers, 1 - sum(sizes) / finder.total, max(sizes) / finder.total


# --- tiny configs with real weights ----------------------------------------------------------
def tiny_q21_transformer() -> nn.Module:
    return diffusers.QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=9,
        num_attention_heads=2,
        attention_head_dim=16,
        context_in_dim=32,
        axes_dims_rope=(4, 4, 8),
    )


def tiny_q21_text_encoder() -> nn.Module:
    config = transformers.Qwen3VLConfig(
        text_config={
            "num_hidden_layers": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 64,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def tiny_q21_vae() -> nn.Module:
    return diffusers.AutoencoderKLQwenImage21(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


def tiny_flux() -> nn.Module:
    return diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=4,
        num_single_layers=6,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )


def tiny_t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=9, num_heads=2
    )
    return transformers.T5EncoderModel(config)


@pytest.mark.parametrize(
    ("make", "lists"),
    [
        (tiny_flux, {"transformer_blocks": 4, "single_transformer_blocks": 6}),
        (tiny_t5, {"encoder.block": 9}),
        (tiny_q21_transformer, {"transformer_blocks": 9}),
        (
            tiny_q21_text_encoder,
            {
                "model.visual.blocks": 3,
                "model.visual.deepstack_merger_list": 2,
                "model.language_model.layers": 4,
            },
        ),
    ],
)
def test_a_tiny_model_is_surveyed_whole(
    make: Callable[[], nn.Module], lists: dict[str, int]
) -> None:
    root = make()
    facts = survey_component(root, "net")
    assert facts.lists == lists
    unrounded = sum(p.nbytes for p in root.parameters())
    assert unrounded <= facts.weight_bytes <= unrounded + 256 * len(list(root.parameters()))


def test_t5_keeps_its_tied_embedding_in_the_trunk_once() -> None:
    root = tiny_t5()
    assert root.shared.weight is root.encoder.embed_tokens.weight
    trunk = survey_component(root, "text_encoder").trunk
    assert trunk.num_bytes == 64 * 16 * 4 + 256  # the embedding and the final norm


def test_a_staged_vae_has_layers_on_both_sides() -> None:
    """Each up stage has one resnet more than ``num_res_blocks``; middles have two."""
    lists = survey_component(tiny_q21_vae(), "vae").lists
    assert lists["encoder.mid_block.resnets"] == lists["decoder.mid_block.resnets"] == 2
    assert lists["decoder.up_blocks.0.resnets"] == 2
    assert {name.split(".")[0] for name in lists} == {"encoder", "decoder"}
