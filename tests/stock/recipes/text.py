"""Tokenizers and text encoders of stock classes, a few tens of kilobytes each."""

import string
from typing import Any

from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

WIDTH = 32
LAYERS = 3
PIECES = 128  # of a SentencePiece vocabulary


def clip_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def clip(*, projected: bool = False) -> Any:
    vocab_size = len(clip_tokenizer())
    config = CLIPTextConfig(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        projection_dim=WIDTH,
        bos_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 1,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def piece_tokenizer() -> Any:
    """Of T5 and UMT5: single letters, each with a score."""
    letters = string.ascii_letters + string.digits + ".,:!?-'"
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary += [(letter, -3.0) for letter in letters]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=64)


def t5(width: int = WIDTH) -> Any:
    return T5EncoderModel(T5Config(**_t5_sizes(width), feed_forward_proj="gated-gelu"))


def umt5() -> Any:
    return UMT5EncoderModel(UMT5Config(**_t5_sizes(WIDTH), feed_forward_proj="gated-gelu"))


def _t5_sizes(width: int) -> dict[str, Any]:
    return {
        "vocab_size": PIECES,
        "d_model": width,
        "d_kv": WIDTH // 2,
        "d_ff": 2 * WIDTH,
        "num_layers": LAYERS,
        "num_heads": 2,
    }


def qwen2_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {letter: index for index, letter in enumerate([*letters, *special])}
    return Qwen2Tokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=special[1:], model_max_length=1024
    )


def qwen25_vl() -> Any:
    """Qwen2.5-VL: two vision blocks that a text-only request never runs."""
    text = {
        "vocab_size": 300,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": None,
        "eos_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 3, 3],
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=296,
        video_token_id=297,
        vision_start_token_id=298,
        vision_end_token_id=299,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def gemma_tokenizer() -> Any:
    letters = [*string.ascii_letters, *string.digits, *".,:!?-' \n▁"]
    vocabulary = {p: i for i, p in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", *letters])}
    return GemmaTokenizer(vocab=vocabulary, merges=[])


def gemma2() -> Any:
    config = Gemma2Config(
        vocab_size=PIECES,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=WIDTH // 2,
    )
    return Gemma2Model(config)
