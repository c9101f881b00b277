"""What the requests of the recipes share: a small size, a picture, weights that are not zero."""

from typing import TypeVar

import torch
from PIL import Image
from torch import nn

SIZE = {"height": 32, "width": 32, "num_inference_steps": 2}
Net = TypeVar("Net", bound=nn.Module)


def picture(width: int = 32, height: int = 32, seed: int = 1) -> Image.Image:
    """Noise."""
    noise = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray((noise * 255).to(torch.uint8).numpy())


def woken(controlnet: Net) -> Net:
    """A ControlNet's outputs begin at zero; with random ones it matters to the picture."""
    for name, parameter in controlnet.named_parameters():
        if "controlnet" in name and parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1)
    return controlnet
