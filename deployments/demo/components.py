"""The untrained parts of the demo pipeline, and writing them as one diffusers folder.

Knows sizes and file formats; knows nothing of data or training.
"""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Qwen2TokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
VISION_TOKENS = {
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
}
VOCABULARY = 576
# The text of the system message alone must take as many tokens as it takes inside the pipeline's
# raw prompt, so the template trims no newline.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EMBEDDING_GAIN = 10.0  # with the default the words carry a tenth of the signal and go unread


def new_processor(lines: list[str]) -> Any:
    """A Qwen3-VL processor with a byte-level BPE vocabulary learnt from `lines`."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    system = "system\nComprehend and analyze the provided prompt.\nuser\nassistant\n"
    words.train_from_iterator([*lines, *[system] * 20], trainer)
    state = json.loads(words.to_str())["model"]
    tokenizer = Qwen2TokenizerFast(
        vocab=state["vocab"],
        merges=[tuple(pair) for pair in state["merges"]],
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS,
        model_max_length=4096,
    )
    sizes = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    edges = {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=edges, **sizes),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**sizes),
        chat_template=CHAT_TEMPLATE,
    )


def new_text_encoder(tokenizer: Any) -> Any:
    """A random Qwen3-VL encoder: 16 text layers, 3 vision blocks, 2 deepstack mergers."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        **{
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
            for name, token in VISION_TOKENS.items()
        },
    )
    model = Qwen3VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(EMBEDDING_GAIN)
    return model.requires_grad_(False)


def new_transformer(num_layers: int = 12) -> Any:
    """A random block-causal transformer with one token per 16x16 pixels."""
    return QwenImage21Transformer2DModel(
        in_channels=16,
        out_channels=16,
        num_layers=num_layers,
        attention_head_dim=24,
        num_attention_heads=4,
        context_in_dim=64,
        mlp_ratio=3,
        axes_dims_rope=(8, 8, 8),
    )


def new_vae(latents_mean: list[float] | None = None, latents_std: list[float] | None = None) -> Any:
    """A random RGBA autoencoder that makes 16 latent channels of each 16x16 pixels."""
    return AutoencoderKLQwenImage21(
        base_dim=16,
        decoder_base_dim=32,
        z_dim=16,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, False],
        latents_mean=latents_mean or [0.0] * 16,
        latents_std=latents_std or [1.0] * 16,
        in_channels=64,
        out_channels=64,
        patch_size=4,
    )


def new_scheduler() -> Any:
    """The flow-matching scheduler with Qwen-Image's timestep shift."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
        time_shift_type="exponential",
    )


def new_pipeline(lines: list[str], seed: int) -> Any:
    """A whole pipeline with random weights that follow from `seed`."""
    torch.manual_seed(seed)
    processor = new_processor(lines)
    return QwenImage21Pipeline(
        scheduler=new_scheduler(),
        vae=new_vae(),
        text_encoder=new_text_encoder(processor.tokenizer),
        processor=processor,
        transformer=new_transformer(),
    )


def round_to_bfloat16(model: torch.nn.Module) -> None:
    """Round float32 weights to what the 16-bit file will hold, in place."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16))


def save_pipeline(pipeline: Any, folder: Path, record: dict[str, Any]) -> None:
    """Write the pipeline in bfloat16 with `training.json`, replacing the folder's files one by one.

    The pipeline's own modules stay as they are. Each file appears whole, by a rename.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = dict(pipeline.components)
    for name in ("vae", "text_encoder", "transformer"):
        parts[name] = copy.deepcopy(parts[name]).to(torch.bfloat16)  # a tie stays a tie
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as staged_name:
        staged = Path(staged_name)
        QwenImage21Pipeline(**parts).save_pretrained(staged, safe_serialization=True)
        (staged / "training.json").write_text(json.dumps(record, indent=2) + "\n")
        for source in sorted(path for path in staged.rglob("*") if path.is_file()):
            target = folder / source.relative_to(staged)
            target.parent.mkdir(exist_ok=True)
            source.chmod(0o644)  # safetensors writes 0600
            os.replace(source, target)
