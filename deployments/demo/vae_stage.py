"""Training the demo model's autoencoder on drawn scenes.

Knows pictures and latents; knows nothing of captions or the transformer.
"""

import random
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage21 import _patchify, _unpatchify
from torch import Tensor

from deployments.demo.drawing import SIDE, draw
from deployments.demo.scenes import Scene, draw_lots

CROP = 64  # pixels
KL_WEIGHT = 4e-5  # on the divergence summed over channels; at 5e-4 half of the channels go unused


def to_rgba(pictures: list[np.ndarray[Any, Any]]) -> Tensor:
    """Drawn pictures as [n, 4, 1, side, side] in -1..1, opaque."""
    colour = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    return torch.cat([colour, torch.ones_like(colour[:, :1])], dim=1).unsqueeze(2)


def posterior(vae: Any, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log variance of the latents, each [n, 16, 1, side / 16, side / 16]."""
    hidden = vae.quant_conv(vae.encoder(_patchify(pictures, vae.config.patch_size)))
    mean, log_variance = hidden.chunk(2, dim=1)
    return mean, log_variance.clamp(-20.0, 10.0)


def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Pictures of the latents without the clamp of `decode`, which has no gradient outside."""
    pictures: Tensor = _unpatchify(vae.decoder(vae.post_quant_conv(latents)), vae.config.patch_size)
    return pictures


class VaeLoss:
    """The autoencoder's loss at a step: L1 + MSE + KL on crops near edges or whole pictures."""

    def __init__(self, vae: Any, seed: int, crops: int = 16, whole: int = 4) -> None:
        self._vae = vae
        self._seed = seed
        self._crops = crops
        self._whole = whole

    def __call__(self, step: int) -> Tensor:
        rng = random.Random(f"vae {self._seed} {step}")
        if rng.random() < 0.7:
            pictures = [_crop(rng, draw_lots(rng)) for _ in range(self._crops)]
        else:
            pictures = [draw(draw_lots(rng)) for _ in range(self._whole)]
        target = to_rgba(pictures)
        mean, log_variance = posterior(self._vae, target)
        generator = torch.Generator().manual_seed(rng.getrandbits(48))
        noise = torch.randn(mean.shape, generator=generator)
        error = decoded(self._vae, mean + (0.5 * log_variance).exp() * noise) - target
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(1).mean()
        loss: Tensor = error.abs().mean() + error.square().mean() + KL_WEIGHT * divergence
        return loss


def _crop(rng: random.Random, scene: Scene) -> np.ndarray[Any, Any]:
    """A crop whose middle lies near the edge of one of the scene's objects."""
    item = rng.choice(scene.items)
    x = item.x + item.radius * rng.uniform(-1.0, 1.0)
    y = item.y + item.radius * rng.uniform(-1.0, 1.0)
    left = min(max(int(x * SIDE) - CROP // 2, 0), SIDE - CROP)
    top = min(max(int(y * SIDE) - CROP // 2, 0), SIDE - CROP)
    return draw(scene)[top : top + CROP, left : left + CROP]


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight is trained by Muon: the 3x3 convolutions but the first of each half."""
    return weight.dim() == 4 and weight.shape[-1] == 3 and "conv_in" not in name


@torch.no_grad()
def peak_signal_to_noise(vae: Any, seed: int, count: int = 48) -> float:
    """Quality of reconstruction in dB over `count` fresh scenes."""
    rng = random.Random(f"psnr {seed}")
    target = to_rgba([draw(draw_lots(rng)) for _ in range(count)])
    error = decoded(vae, posterior(vae, target)[0]).clamp(-1, 1)[:, :3] - target[:, :3]
    return float(10 * torch.log10(4.0 / error.square().mean()))


@torch.no_grad()
def encoded(vae: Any, scenes: list[Scene], batch: int = 64) -> Tensor:
    """Latent means of the scenes' pictures, [n, 64, 16], as the transformer reads them."""
    parts = []
    for start in range(0, len(scenes), batch):
        pictures = to_rgba([draw(scene) for scene in scenes[start : start + batch]])
        parts.append(posterior(vae, pictures)[0].flatten(2).transpose(1, 2))
    return torch.cat(parts)
