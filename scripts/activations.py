"""Activations of Qwen-Image-2.1, counted ahead: no weight, no card, no picture.

``python -m scripts.activations`` builds the shipped architecture on torch's meta device, calls its
parts with what the pipeline gives them, and writes the peaks of a ledger of live storages to
``activations.json`` beside the architecture. It plans nothing; ``deployments/estimates.py`` reads
the file, and tests/deployments/test_activations.py compares the method with real requests.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from deployments.architectures import find_architecture
from deployments.blueprint import build_modules
from deployments.config import ModelConfig
from deployments.estimates import FILE_NAME
from offload import LiveLedger

MODEL = "qwen-image-2.1"
WIDE = {"vae": "float32"}  # as its Serve file loads it
STEPS = 2  # one that fills the key/value cache, and one that reads it
LATENT_PIXELS = 16  # width and height of what one latent position shows
POSITIONS_PER_SLOT = 4  # of latents, to one of the encoder's image slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One request."""

    width: int
    height: int
    num_tokens: int  # of the prompt, with what the pipeline writes around it

    @property
    def words(self) -> str:
        return f"{self.width}x{self.height} and a prompt of {self.num_tokens} tokens"


USUAL = Scene(width=1024, height=1024, num_tokens=512)


def count(modules: Mapping[str, Any], scene: Scene) -> dict[str, int]:
    """Component -> the most bytes that live beside the weights from its run until the next one's.

    What the pipeline keeps meanwhile counts: the prompt's embeddings, and the key/value cache,
    which lives until the picture is decoded. The modules are on the meta device.
    """
    peaks: dict[str, int] = {}
    # With gradients off alone, torch takes attention apart on the meta device.
    with torch.inference_mode(), LiveLedger() as ledger, _MasksOfTheHost():
        embeds = _encode(modules["text_encoder"], scene)
        peaks["text_encoder"] = ledger.mark()
        kept = _denoise(modules["transformer"], embeds, scene)
        peaks["transformer"] = ledger.mark()
        _decode(modules["vae"], scene)
        peaks["vae"] = ledger.mark()
        del kept, embeds
    return peaks


def _encode(encoder: Any, scene: Scene) -> torch.Tensor:
    """With every hidden state and all logits, as the pipeline asks for them; one state is kept."""
    ids = torch.zeros(1, scene.num_tokens, dtype=torch.long, device="meta")
    answer = encoder(input_ids=ids, output_hidden_states=True)
    embeds: torch.Tensor = answer.hidden_states[-1].clone()
    return embeds


def _denoise(transformer: Any, embeds: torch.Tensor, scene: Scene) -> list[Any]:
    """Returns what the pipeline holds on to until it returns itself."""
    rows, columns = scene.height // LATENT_PIXELS, scene.width // LATENT_PIXELS
    channels = transformer.config.in_channels
    latents = torch.zeros(1, rows * columns, channels, dtype=embeds.dtype, device="meta")
    # Where pictures are is looked at by value, so it must have values.
    text = torch.zeros(1, scene.num_tokens, dtype=torch.bool)
    target = torch.ones(1, rows * columns // POSITIONS_PER_SLOT, dtype=torch.bool)
    mask = torch.cat([text, target], dim=1)
    cache_class = sys.modules[type(transformer).__module__].QwenImage21KVCache
    cache = cache_class(len(transformer.transformer_blocks))
    for step in range(STEPS):
        (noise,) = transformer(
            hidden_states=latents,
            timestep=torch.zeros(1, dtype=embeds.dtype, device="meta"),
            encoder_hidden_states=embeds,
            img_shapes=[[(1, rows, columns)]],
            img_mask=mask,
            kv_cache=cache,
            kv_cache_mode="cached" if step else "extract",
            return_dict=False,
        )
        latents = latents + noise[:, -latents.shape[1] :]
    return [latents, mask, cache]


def _decode(vae: Any, scene: Scene) -> None:
    shape = (1, vae.config.z_dim, 1, scene.height // LATENT_PIXELS, scene.width // LATENT_PIXELS)
    vae.decode(torch.zeros(shape, dtype=vae.dtype, device="meta"), return_dict=False)


class _MasksOfTheHost(TorchFunctionMode):
    """A mask with values may choose between tensors without; torch would refuse it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.where and len(args) == 3 and getattr(args[1], "is_meta", False):
            args = (args[0].to("meta"), *args[1:])
        return func(*args, **(kwargs or {}))


def estimate(scene: Scene) -> dict[str, Any]:
    """The content of the file."""
    model = ModelConfig(name=MODEL, component_dtypes=WIDE)
    modules: dict[str, Any] = build_modules(model, {}, find_architecture(model).folder)
    whole = count(modules, scene)
    modules["vae"].enable_tiling()
    tiled = count(modules, scene)
    components = {
        name: {
            "dtype": model.dtype_of(name),
            "activation_bytes": num_bytes,
            "with": {"tiling": tiled[name]} if tiled[name] != num_bytes else {},
        }
        for name, num_bytes in whole.items()
    }
    return {"of": scene.words, "components": components}


def main() -> None:
    path = find_architecture(ModelConfig(name=MODEL)).folder.path / FILE_NAME
    path.write_text(json.dumps(estimate(USUAL), indent=2) + "\n")
    print(f"{path}: written")


if __name__ == "__main__":
    main()
