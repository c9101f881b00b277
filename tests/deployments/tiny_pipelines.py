"""Small pipelines with random weights, made on the spot for tests."""

from pathlib import Path

import torch

from deployments.demo.components import new_pipeline
from deployments.demo.scenes import all_words


def save_tiny_pipeline(folder: Path, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Path:
    """Write a random pipeline of a few MB whose files hold `dtype`; returns the folder.

    Loaded in the same dtype it needs no conversion, so its weights can stay views of the files.
    """
    pipeline = new_pipeline(all_words(), seed)
    pipeline.to(dtype)
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder
