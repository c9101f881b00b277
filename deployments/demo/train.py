"""Train the demo checkpoint: `python -m deployments.demo.train --out FOLDER`.

Three stages: the autoencoder, the transformer on a broad mix of scenes, and the transformer again
on mostly single objects. The result follows from the options; a run that was stopped goes on from
its `--work` folder. `--minutes` only stops early and records the steps.
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
from deployments.demo.scenes import BROAD, MOSTLY_SINGLE, Mix, all_words, draw_lots
from deployments.demo.stages import Limits, run_stage
from deployments.demo.transformer_stage import Examples, FlowLoss

DENOISING_STEPS = 20  # what the record names as the default


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the embedded demo checkpoint on the CPU.")
    parser.add_argument("--out", type=Path, default=Path("deployments/demo/checkpoint"))
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="resumable state")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4500, help="transformer, broad mix")
    parser.add_argument("--refine-steps", type=int, default=1800, help="mostly single objects")
    parser.add_argument("--vae-steps", type=int, default=3000)
    parser.add_argument("--scenes", type=int, default=24000, help="pictures of the broad mix")
    parser.add_argument("--refine-scenes", type=int, default=12000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None, help="stop early after this long")
    parser.add_argument("--publish-every", type=int, default=500, help="steps between writes")
    return parser.parse_args()


class Training:
    """One run: the pipeline in the making, its options and how far each stage has come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._until_s = time.monotonic() + (args.minutes or 1e9) * 60
        self._pipeline = new_pipeline(all_words(), args.seed)
        round_to_bfloat16(self._pipeline.text_encoder)
        self._taken: dict[str, int] = {}

    def train_vae(self) -> None:
        """Train the autoencoder and measure its latents."""
        args, vae = self._args, self._pipeline.vae
        optimisers = Optimisers(vae, vae_stage.is_matrix, muon_lr=0.02, adam_lr=3e-3, decay=0.998)
        limits = Limits(steps=args.vae_steps, until_s=self._until_s)
        loss = vae_stage.VaeLoss(vae, args.seed)
        self._taken["vae"] = run_stage(optimisers, loss, limits, args.work / "vae.pt")
        vae.load_state_dict(optimisers.averaged())
        round_to_bfloat16(vae)
        vae.eval().requires_grad_(False)
        print(f"vae: {vae_stage.peak_signal_to_noise(vae, args.seed):.1f} dB", flush=True)
        if self._taken["vae"] < args.vae_steps:
            return  # stopped early: latents kept now would be another autoencoder's later
        latents = self._latents("flow", BROAD, args.scenes)
        mean, std = latents.mean((0, 1)), latents.std((0, 1))
        vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())

    def train_transformer(self) -> None:
        """Train the transformer on both mixes, writing the checkpoint now and then."""
        args = self._args
        broad = Limits(steps=args.steps, until_s=self._until_s)
        self._train_on("flow", BROAD, args.scenes, 0.02, broad)
        if self._taken["flow"] == args.steps:
            single = Limits(steps=args.refine_steps, until_s=self._until_s, tail=1.0)
            self._train_on("refine", MOSTLY_SINGLE, args.refine_scenes, 0.012, single)

    def _train_on(self, name: str, mix: Mix, count: int, rate: float, limits: Limits) -> None:
        transformer, args = self._pipeline.transformer, self._args
        optimisers = Optimisers(
            transformer, transformer_stage.is_matrix, muon_lr=rate, adam_lr=rate / 10, decay=0.995
        )
        loss = FlowLoss(
            transformer, lambda: self._examples(name, mix, count), f"{name} {args.seed}"
        )

        def on_save(step: int) -> None:
            self._taken[name] = step
            if step % args.publish_every == 0:
                current = {key: value.clone() for key, value in transformer.state_dict().items()}
                transformer.load_state_dict(optimisers.averaged())
                self.publish()
                transformer.load_state_dict(current)

        self._taken[name] = run_stage(optimisers, loss, limits, args.work / f"{name}.pt", on_save)
        transformer.load_state_dict(optimisers.averaged())

    def _scenes(self, name: str, mix: Mix, count: int) -> list[Any]:
        rng = random.Random(f"{'scenes' if name == 'flow' else name} {self._args.seed}")
        return [draw_lots(rng, mix) for _ in range(count)]

    def _latents(self, name: str, mix: Mix, count: int) -> torch.Tensor:
        kept = self._args.work / f"{name}-latents.pt"
        if not kept.exists():
            scenes = self._scenes(name, mix, count)
            torch.save(vae_stage.encoded(self._pipeline.vae, scenes), kept)
        latents: torch.Tensor = torch.load(kept, weights_only=True)
        return latents

    def _examples(self, name: str, mix: Mix, count: int) -> Examples:
        """Pictures and words as the transformer reads them."""
        config = self._pipeline.vae.config
        mean, std = torch.tensor(config.latents_mean), torch.tensor(config.latents_std)
        captions = [scene.caption for scene in self._scenes(name, mix, count)]
        return Examples(
            latents=(self._latents(name, mix, count) - mean) / std,
            embeddings=transformer_stage.embedded(self._pipeline, captions),
            blank=transformer_stage.embedded(self._pipeline, [" "])[0],
        )

    def publish(self) -> None:
        """Write the checkpoint and what it says of its own making."""
        args = self._args
        record = {
            "seed": args.seed,
            "threads": args.threads,
            "scenes": args.scenes,
            "refine_scenes": args.refine_scenes,
            "vae_steps": self._taken.get("vae", 0),
            "steps": self._taken.get("flow", 0),
            "refine_steps": self._taken.get("refine", 0),
            "planned_steps": [args.vae_steps, args.steps, args.refine_steps],
            "picture_side": SIDE,
            "denoising_steps": DENOISING_STEPS,
        }
        save_pipeline(self._pipeline, args.out, record)
        print(f"wrote {args.out}: {self._taken}", flush=True)


def main() -> None:
    """Run all stages and write the checkpoint."""
    args = parsed()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    training = Training(args)
    training.train_vae()
    training.train_transformer()
    training.publish()


if __name__ == "__main__":
    main()
