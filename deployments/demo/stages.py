"""The loop that both training stages run: progress, checkpoints, resuming, stopping early.

Knows steps and files; the stage gives the loss.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deployments.demo.optimising import Optimisers, rate_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a stage goes: `steps` fixes the result, `until_s` (monotonic) only stops early."""

    steps: int
    until_s: float
    tail: float = 0.4  # share of the steps over which the learning rate falls
    save_every: int = 100


def run_stage(
    optimisers: Optimisers,
    loss_at: Callable[[int], Tensor],
    limits: Limits,
    state_file: Path,
    on_save: Callable[[int], None] = lambda step: None,
) -> int:
    """Train until the steps or the time are used up; returns the number of steps taken.

    The loss of a step follows from its number alone, so a resumed run goes the same way.
    """
    name, step = state_file.stem, 0
    if state_file.exists():
        saved = torch.load(state_file, weights_only=True)
        optimisers.load(saved)
        step = int(saved["step"])
        print(f"{name}: resumed at step {step}", flush=True)
    started, first, smooth = time.monotonic(), step, 0.0
    while step < limits.steps and time.monotonic() < limits.until_s:
        loss = loss_at(step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimisers.step(rate_at(step, limits.steps, limits.tail), step)
        smooth = loss.item() if step == first else 0.98 * smooth + 0.02 * loss.item()
        step += 1
        if step % 25 == 0:
            pace_s = (time.monotonic() - started) / (step - first)
            left_s = pace_s * (limits.steps - step)
            print(
                f"{name}: step {step}/{limits.steps} loss {smooth:.4f} "
                f"{pace_s:.3f} s/step {left_s:.0f} s left",
                flush=True,
            )
        if step % limits.save_every == 0:
            _save(optimisers, step, state_file)
            on_save(step)
    _save(optimisers, step, state_file)
    return step


def _save(optimisers: Optimisers, step: int, state_file: Path) -> None:
    staged = state_file.with_suffix(".new")
    torch.save({**optimisers.state(), "step": step}, staged)
    os.replace(staged, state_file)
