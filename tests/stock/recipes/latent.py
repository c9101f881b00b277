"""Autoencoders of stock classes: 8 pixels to a latent, a few tens of kilobytes each."""

from typing import Any

from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLLTXVideo,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
)

Z_DIM = 4


def kl(latent_channels: int = 4, *, force_upcast: bool = False, **options: Any) -> Any:
    return AutoencoderKL(
        block_out_channels=(8, 8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=latent_channels,
        norm_num_groups=4,
        sample_size=32,
        force_upcast=force_upcast,
        **options,
    )


def flux_kl(latent_channels: int = 4) -> Any:
    """As FLUX and SD3 have it: shifted latents, no quantisation convolutions."""
    return kl(
        latent_channels,
        shift_factor=0.1,
        scaling_factor=0.4,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _causal() -> dict[str, Any]:
    return {
        "base_dim": 8,
        "z_dim": Z_DIM,
        "dim_mult": [1, 1, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.1] * Z_DIM,
        "latents_std": [1.1] * Z_DIM,
    }


def wan() -> Any:
    """Causal: its convolutions keep frames in a list that is passed along and changed."""
    return AutoencoderKLWan(**_causal())


def qwen_image() -> Any:
    return AutoencoderKLQwenImage(**_causal())


def ltx() -> Any:
    return AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        patch_size=1,
        patch_size_t=1,
    )


def dc() -> Any:
    """Its block lists hold Sequentials."""
    return AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(2, 2),
        decoder_layers_per_block=(2, 2),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
    )
