"""Training the demo model's transformer by flow matching on cached latents and embeddings.

Knows tensors and lengths; the pictures and words were turned into them before.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BATCH = 32
SLOTS = 16  # the encoder's image slots for one picture: 2x2 latent tokens each
GRID = (1, 8, 8)  # frames, rows, columns of latent tokens
MIXED = 0.15  # share of batches with prompts of several lengths, padded
BLANK = 0.3  # share of blank prompts within those


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What the transformer learns from; one entry for each scene."""

    latents: Tensor  # CPU float32 [n, 64, 16], normalised
    embeddings: list[Tensor]  # CPU float32 [length, 64] each
    blank: Tensor  # CPU float32 [length, 64], the empty prompt's


@torch.no_grad()
def embedded(pipeline: Any, captions: list[str], batch: int = 64) -> list[Tensor]:
    """The captions' embeddings as the pipeline itself computes them, one tensor each."""
    by_length: dict[int, list[int]] = {}
    for index, caption in enumerate(captions):
        length = len(pipeline.processor.tokenizer(caption).input_ids)
        by_length.setdefault(length, []).append(index)
    found: dict[int, Tensor] = {}
    for indices in by_length.values():
        for start in range(0, len(indices), batch):
            part = indices[start : start + batch]
            rows, _, _ = pipeline._get_qwen_prompt_embeds([captions[i] for i in part])
            found.update(zip(part, rows.clone().unbind(0), strict=True))
    return [found[index] for index in range(len(captions))]


class FlowLoss:
    """The transformer's loss at a step: the velocity from data to noise, squared error."""

    def __init__(self, transformer: Any, gather: Callable[[], Examples], seed: str) -> None:
        self._transformer = transformer
        self._gather = gather
        self._seed = seed
        self._examples: Examples | None = None  # gathered at the first step
        self._buckets: list[list[int]] = []  # indices of examples, by length of their prompts

    def __call__(self, step: int) -> Tensor:
        if self._examples is None:
            self._examples = self._gather()
            self._fill_buckets(self._examples.embeddings)
        examples = self._examples
        rng = random.Random(f"{self._seed} {step}")
        generator = torch.Generator().manual_seed(rng.getrandbits(48))
        if rng.random() < MIXED:
            chosen = rng.sample(range(len(examples.embeddings)), BATCH)
            rows = [
                examples.blank if rng.random() < BLANK else examples.embeddings[i] for i in chosen
            ]
        else:
            weights = [len(bucket) for bucket in self._buckets]
            chosen = rng.sample(rng.choices(self._buckets, weights)[0], BATCH)
            rows = [examples.embeddings[i] for i in chosen]
        return self._loss(examples.latents[chosen], rows, generator)

    def _fill_buckets(self, embeddings: list[Tensor]) -> None:
        by_length: dict[int, list[int]] = {}
        for index, rows in enumerate(embeddings):
            by_length.setdefault(rows.shape[0], []).append(index)
        self._buckets = [found for found in by_length.values() if len(found) >= BATCH]

    def _loss(self, data: Tensor, rows: list[Tensor], generator: torch.Generator) -> Tensor:
        count = data.shape[0]
        noise = torch.randn(data.shape, generator=generator)
        shifted = torch.sigmoid(0.8 + torch.randn(count, generator=generator))
        uniform = torch.rand(count, generator=generator)
        time = torch.where(torch.rand(count, generator=generator) < 0.75, shifted, uniform)
        mixed = data + time[:, None, None] * (noise - data)
        velocity = predicted(self._transformer, mixed, time, rows)
        loss: Tensor = (velocity - (noise - data)).square().mean()
        return loss


def predicted(transformer: Any, mixed: Tensor, time: Tensor, rows: list[Tensor]) -> Tensor:
    """The transformer's velocity for latents [n, 64, 16] at times [n], as the pipeline asks."""
    text = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([row.shape[0] for row in rows])
    mask = torch.arange(text.shape[1])[None] < lengths[:, None]
    slots = torch.zeros(len(rows), text.shape[1] + SLOTS, dtype=torch.bool)
    slots[:, text.shape[1] :] = True
    output = transformer(
        hidden_states=mixed,
        timestep=time,
        encoder_hidden_states=text,
        encoder_hidden_states_mask=None if bool(mask.all()) else mask.long(),
        img_shapes=[[GRID]] * len(rows),
        img_mask=slots,
        return_dict=False,
    )[0]
    velocity: Tensor = output[:, -mixed.shape[1] :]
    return velocity


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight is trained by Muon: the matrices inside the blocks."""
    return weight.dim() == 2 and name.startswith("transformer_blocks.")
