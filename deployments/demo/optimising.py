"""The optimisers and running averages that both training stages share.

Muon for the matrices, AdamW for the rest. Knows nothing of pictures or models.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# The quintic whose repetition drives singular values towards one (Jordan et al., 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(batch: Tensor, rounds: int = 5) -> Tensor:
    """The nearest half-orthogonal matrices to a [n, rows, columns] batch, roughly."""
    a, b, c = QUINTIC
    tall = batch.shape[1] > batch.shape[2]
    x = batch.transpose(1, 2) if tall else batch
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.transpose(1, 2) if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised; weights of one shape are handled together."""

    def __init__(self, weights: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(weights), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply one step to every weight that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for weight in group["params"]:
                by_shape.setdefault(tuple(weight.shape), []).append(weight)
            for weights in by_shape.values():
                self._step_together(weights, group["lr"], group["momentum"])

    def _step_together(self, weights: list[nn.Parameter], lr: float, momentum: float) -> None:
        directions = []
        for weight in weights:
            if weight.grad is None:
                raise ValueError(f"A weight of shape {tuple(weight.shape)} has no gradient.")
            state = self.state[weight]
            if "buffer" not in state:
                state["buffer"] = torch.zeros_like(weight)
            state["buffer"].lerp_(weight.grad, 1 - momentum)
            directions.append(weight.grad.lerp(state["buffer"], momentum).flatten(1))
        stacked = orthogonalised(torch.stack(directions))
        gain = max(1.0, stacked.shape[1] / stacked.shape[2]) ** 0.5
        for weight, direction in zip(weights, stacked, strict=True):
            weight.add_(direction.view_as(weight), alpha=-lr * gain)


class Optimisers:
    """Muon for the weights that `is_matrix` picks, AdamW for the others, and an average of all."""

    def __init__(
        self,
        model: nn.Module,
        is_matrix: Callable[[str, Tensor], bool],
        muon_lr: float,
        adam_lr: float,
        decay: float,
    ) -> None:
        matrices = [p for n, p in model.named_parameters() if is_matrix(n, p)]
        rest = [p for n, p in model.named_parameters() if not is_matrix(n, p)]
        adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self._all: list[torch.optim.Optimizer] = [Muon(matrices, muon_lr), adam]
        self._base_lrs = [muon_lr, adam_lr]
        self._model = model
        self._decay = decay
        self._average = {n: p.detach().clone() for n, p in model.named_parameters()}

    def step(self, scale: float, step: int) -> None:
        """One step at `scale` times the learning rates; clears gradients, moves the average."""
        for optimiser, base in zip(self._all, self._base_lrs, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, weight in self._model.named_parameters():
                self._average[name].lerp_(weight, 1 - decay)

    def averaged(self) -> dict[str, Tensor]:
        """The running average of every weight, by name."""
        return self._average

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, the model's own weights included."""
        return {
            "model": self._model.state_dict(),
            "average": self._average,
            "optimisers": [optimiser.state_dict() for optimiser in self._all],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take up the state that `state` gave, weights included."""
        self._model.load_state_dict(state["model"])
        self._average = state["average"]
        for optimiser, saved in zip(self._all, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def rate_at(step: int, steps: int, tail: float, warm_up: int = 50) -> float:
    """Share of the learning rate: up over `warm_up` steps, flat, down over the last `tail`."""
    up = min(1.0, (step + 1) / warm_up)
    down = min(1.0, (steps - step) / (steps * tail))
    return max(0.02, min(up, down))
