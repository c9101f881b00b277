"""Random LoRAs for the demo pipeline, in the format that diffusers saves."""

import torch
from torch import nn

from offload.facts import aligned

# In layers, in a list inside a layer, and in the trunk.
TARGETS = [
    *(f"transformer_blocks.{i}.attn.to_q" for i in (0, 1, 5, 11)),
    *(f"transformer_blocks.{i}.attn.to_out.0" for i in (0, 4, 6)),
    "transformer_blocks.7.attn.to_v",
    "img_in",
    "proj_out",
]
RANK = 3

Adapter = dict[str, torch.Tensor]


def new_adapter(transformer: nn.Module, seed: int) -> Adapter:
    """A random LoRA in the format that diffusers saves."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for target in TARGETS:
        out_features, in_features = transformer.get_submodule(target).weight.shape
        name = f"transformer.{target}"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, in_features, generator=generator) * 0.2
        weights[f"{name}.lora_B.weight"] = (
            torch.randn(out_features, RANK, generator=generator) * 0.2
        )
    return weights


def card_bytes(adapter: Adapter) -> int:
    return sum(aligned(weight.nbytes) for weight in adapter.values())
