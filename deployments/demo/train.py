"""Train the demo checkpoint: `python -m deployments.demo.train --out FOLDER`.

The result follows from `--seed`, `--steps`, `--vae-steps`, `--scenes` and `--threads`. A run that
was stopped goes on from its `--work` folder. `--minutes` only stops early and records the step.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch

from deployments.demo import transformer_stage, vae_stage
from deployments.demo.components import new_pipeline, round_to_bfloat16, save_pipeline
from deployments.demo.drawing import SIDE
from deployments.demo.optimising import Optimisers
from deployments.demo.scenes import all_words, draw_lots
from deployments.demo.stages import Limits, run_stage

STEPS = 20  # denoising steps that the record names as the default


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the embedded demo checkpoint on the CPU.")
    parser.add_argument("--out", type=Path, default=Path("deployments/demo/checkpoint"))
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="resumable state")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4000, help="steps of the transformer")
    parser.add_argument("--vae-steps", type=int, default=3000)
    parser.add_argument("--scenes", type=int, default=24000, help="pictures to learn from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None, help="stop early after this long")
    parser.add_argument("--publish-every", type=int, default=500, help="steps between writes")
    return parser.parse_args()


def trained_vae(pipeline: Any, args: argparse.Namespace, until_s: float) -> int:
    """Train the autoencoder in place; returns the steps taken."""
    vae = pipeline.vae
    optimisers = Optimisers(vae, vae_stage.is_matrix, muon_lr=0.02, adam_lr=3e-3, decay=0.998)
    loss = vae_stage.VaeLoss(vae, args.seed)
    limits = Limits(steps=args.vae_steps, until_s=until_s)
    taken = run_stage(optimisers, loss, limits, args.work / "vae.pt")
    vae.load_state_dict(optimisers.averaged())
    round_to_bfloat16(vae)
    vae.eval().requires_grad_(False)
    print(f"vae: {vae_stage.peak_signal_to_noise(vae, args.seed):.1f} dB", flush=True)
    return taken


def gathered(pipeline: Any, args: argparse.Namespace) -> transformer_stage.Examples:
    """Draw, encode and embed the training scenes; sets the latents' statistics in the config."""
    began = time.monotonic()
    rng = random.Random(f"scenes {args.seed}")
    scenes = [draw_lots(rng) for _ in range(args.scenes)]
    kept = args.work / "latents.pt"
    if not kept.exists():
        torch.save(vae_stage.encoded(pipeline.vae, scenes), kept)
    latents = torch.load(kept, weights_only=True)
    mean, std = latents.mean((0, 1)), latents.std((0, 1))
    pipeline.vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    embeddings = transformer_stage.embedded(pipeline, [scene.caption for scene in scenes])
    blank = transformer_stage.embedded(pipeline, [" "])[0]
    print(f"data: {len(scenes)} scenes in {time.monotonic() - began:.0f} s", flush=True)
    return transformer_stage.Examples(
        latents=(latents - mean) / std, embeddings=embeddings, blank=blank
    )


def main() -> None:
    """Run both stages and write the checkpoint."""
    args = parsed()
    torch.set_num_threads(args.threads)
    until_s = time.monotonic() + (args.minutes or 1e9) * 60
    args.work.mkdir(parents=True, exist_ok=True)
    pipeline = new_pipeline(all_words(), args.seed)
    round_to_bfloat16(pipeline.text_encoder)
    vae_steps = trained_vae(pipeline, args, until_s)
    examples = gathered(pipeline, args)
    transformer = pipeline.transformer
    optimisers = Optimisers(
        transformer, transformer_stage.is_matrix, muon_lr=0.02, adam_lr=2e-3, decay=0.995
    )
    loss = transformer_stage.FlowLoss(transformer, examples, args.seed)
    limits = Limits(steps=args.steps, until_s=until_s)

    def publish(step: int) -> None:
        if step % args.publish_every and step != args.steps:
            return
        current = {name: weight.clone() for name, weight in transformer.state_dict().items()}
        transformer.load_state_dict(optimisers.averaged())
        save_pipeline(pipeline, args.out, record(args, vae_steps, step))
        transformer.load_state_dict(current)
        print(f"wrote {args.out} at step {step}", flush=True)

    taken = run_stage(optimisers, loss, limits, args.work / "flow.pt", publish)
    args.publish_every = 1
    publish(taken)


def record(args: argparse.Namespace, vae_steps: int, step: int) -> dict[str, Any]:
    """What the checkpoint says of its own making."""
    return {
        "seed": args.seed,
        "threads": args.threads,
        "scenes": args.scenes,
        "vae_steps": vae_steps,
        "steps": step,
        "steps_planned": args.steps,
        "picture_side": SIDE,
        "denoising_steps": STEPS,
    }


if __name__ == "__main__":
    main()
