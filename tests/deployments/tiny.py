"""A tiny Stable Diffusion in stock classes: a UNet and guidance_scale, which the demo has not."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from tokenizers import pre_tokenizers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

WIDTH = 32  # of the text embedding


def save_tiny_stable_diffusion(folder: Path, *, force_upcast: bool, seed: int = 0) -> Path:
    """Write random float32 weights of about 1 MB; returns the folder."""
    torch.manual_seed(seed)
    tokenizer = _new_tokenizer()
    pipeline = StableDiffusionPipeline(
        vae=_new_vae(force_upcast),
        text_encoder=_new_text_encoder(len(tokenizer)),
        tokenizer=tokenizer,
        unet=_new_unet(),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


def _new_tokenizer() -> CLIPTokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def _new_text_encoder(vocab_size: int) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=WIDTH,
        bos_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 1,
    )
    return CLIPTextModel(config)


def _new_unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
    )


def _new_vae(force_upcast: bool) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=4,
        sample_size=64,
        force_upcast=force_upcast,
    )
