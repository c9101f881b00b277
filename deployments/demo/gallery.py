"""Draw twelve prompts with the demo checkpoint into one captioned grid.

`python -m deployments.demo.gallery` writes the picture that the README shows, through the plain
diffusers pipeline.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL import Image, ImageDraw, ImageFont

from deployments.demo.scenes import is_held_out

CHECKPOINT = Path(__file__).parent / "checkpoint"
PROMPTS = (
    "a red circle on a white background",
    "two green triangles",
    "a yellow star on a blue background",
    "a purple heart",
    "an orange square next to a cyan ring",
    "a black cross on a pink background",
    "three brown diamonds",
    "a blue circle above a red square",
    "a white ring on a black background",
    "four pink hearts on a gray background",
    "a green diamond and a yellow circle",
    "a large cyan star on a purple background",
)
COLUMNS, MARGIN, TEXT_HEIGHT = 4, 16, 34


def drawn(pipeline: Any, side: int, steps: int, seed: int) -> list[Image.Image]:
    """One picture for each prompt, all from `seed`, at the size the model was trained for."""
    return [
        pipeline(
            prompt,
            height=side,
            width=side,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        for prompt in PROMPTS
    ]


def laid_out(pictures: list[Image.Image], scale: int = 2) -> Image.Image:
    """The pictures in a grid on white, each over its prompt."""
    side = pictures[0].width * scale
    rows = -(-len(pictures) // COLUMNS)
    width, height = side + MARGIN, side + MARGIN + TEXT_HEIGHT
    grid = Image.new("RGB", (COLUMNS * width + MARGIN, rows * height + MARGIN), "white")
    pen, font = ImageDraw.Draw(grid), ImageFont.load_default(14)
    for index, (picture, prompt) in enumerate(zip(pictures, PROMPTS, strict=True)):
        x = MARGIN + index % COLUMNS * width
        y = MARGIN + index // COLUMNS * height
        large = picture.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
        grid.paste(large, (x, y))
        pen.rectangle((x - 1, y - 1, x + side, y + side), outline=(208, 208, 208))
        pen.text((x, y + side + 6), prompt, fill=(36, 36, 36), font=font)
    return grid


def main() -> None:
    """Draw the grid and say where it went."""
    parser = argparse.ArgumentParser(description="Draw twelve prompts into one grid.")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--out", type=Path, default=Path("docs/images/demo-grid.png"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    record = json.loads((args.checkpoint / "training.json").read_text())
    pipeline = DiffusionPipeline.from_pretrained(args.checkpoint, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pictures = drawn(pipeline, record["picture_side"], record["denoising_steps"], args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    laid_out(pictures).save(args.out, optimize=True)
    held_out = sum(is_held_out(prompt) for prompt in PROMPTS)
    print(f"wrote {args.out}: {len(PROMPTS)} prompts, {held_out} of them never trained on")


if __name__ == "__main__":
    main()
