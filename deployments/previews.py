"""What a picture will look like, from its latents alone: a linear projection to small RGB.

Learnt by least squares from pictures that were decoded anyway, the warm-up's first; no component
is run for it, and none leaves the card. Numbers on the host only: numpy, no torch.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from deployments.images import encode, on_white
from deployments.messages import GenerateJob, Preview

Floats = NDArray[np.float32]

NUM_TAUGHT = 32  # pictures to learn from; more would change nothing that one sees
RIDGE = 1e-3  # of a position's weight: keeps channels that never varied at zero


class Projection:
    """Channels of a latent position -> the mean colour of the pixels that it stands for."""

    def __init__(self) -> None:
        self._num_pictures = 0
        self._products: Floats = np.zeros((0, 0), np.float32)  # (channels + 1) squared
        self._colours: Floats = np.zeros((0, 3), np.float32)  # channels + 1, RGB

    @property
    def learns(self) -> bool:
        return self._num_pictures < NUM_TAUGHT

    def learn(self, grid: Floats, picture: Image.Image) -> None:
        """The finished latents of a picture, rows x columns x channels, and the picture."""
        rows, columns, _ = grid.shape
        small = on_white(picture).resize((columns, rows), Image.Resampling.BOX)
        inputs = _with_one(grid)
        if not self._num_pictures:
            self._products = np.zeros((inputs.shape[1],) * 2, np.float32)
            self._colours = np.zeros((inputs.shape[1], 3), np.float32)
        self._products += inputs.T @ inputs
        self._colours += inputs.T @ np.asarray(small, np.float32).reshape(-1, 3)
        self._num_pictures += 1

    def picture(self, grid: Floats) -> Image.Image | None:
        """One pixel for each position; None while nothing was learnt."""
        if not self._num_pictures:
            return None
        inputs = _with_one(grid)
        ridge = RIDGE * self._products[-1, -1] * np.eye(len(self._products), dtype=np.float32)
        weights = np.linalg.solve(self._products + ridge, self._colours)
        colours = np.clip(inputs @ weights, 0, 255).reshape(*grid.shape[:2], 3)
        return Image.fromarray(colours.round().astype(np.uint8))


class Sketcher:
    """The previews of one image, from its latents after each step."""

    def __init__(self, projection: Projection, job: GenerateJob) -> None:
        self._projection = projection
        self._due = frozenset(job.preview_steps)
        self._last_step = job.steps
        self._size = job.width, job.height
        self._grid: Floats | None = None  # as of the last step that was looked at

    def wants(self, step: int) -> bool:
        """Whether the latents after ``step`` (from 1) are needed on the host."""
        finished = step >= self._last_step and self._projection.learns
        return finished or step in self._due or step + 1 in self._due

    def after(self, step: int, latents: Floats, sigmas: Sequence[float]) -> Image.Image | None:
        """The preview that is due after this step. ``sigmas``: noise before each step, if known."""
        before, self._grid = self._grid, grid_of(latents, *self._size)
        if self._grid is None or step not in self._due:
            return None
        clean = self._grid
        if before is not None and len(sigmas) > step:
            clean = _foretold(before, clean, sigmas[step - 1], sigmas[step])
        return self._projection.picture(clean)

    def finish(self, picture: Image.Image) -> None:
        """The image is decoded: learn from it."""
        learnable = self._grid is not None and np.isfinite(self._grid).all()
        if learnable and self._projection.learns:
            assert self._grid is not None
            self._projection.learn(self._grid, picture)


def preview_of(job: GenerateJob, step: int, sketch: Image.Image) -> Preview:
    """As large as the picture will be, and encoded like it; ``step`` counts over all images."""
    image = (step - 1) // job.steps
    whole = sketch.resize((job.width, job.height), Image.Resampling.BICUBIC)
    return Preview(
        data=encode(whole, job.output_format, job.output_compression),
        image=image,
        index=job.preview_steps.index(step - image * job.steps),
    )


def grid_of(latents: Floats, width: int, height: int) -> Floats | None:
    """Rows x columns x channels of one image's latents; None for a layout that is not known."""
    image = latents[0]
    if image.ndim == 4:  # channels, frames, rows, columns
        image = image[:, 0]
    if image.ndim == 3:  # channels, rows, columns
        return np.ascontiguousarray(image.transpose(1, 2, 0))
    side = math.isqrt(width * height // len(image)) if image.ndim == 2 else 0
    if not side or (height // side) * (width // side) != len(image):
        return None
    grid: Floats = image.reshape(height // side, width // side, -1)  # positions, channels
    return grid


def num_positions(shape: Sequence[int]) -> int:
    """Of one image's latents, whatever their layout; 0 where they are not known."""
    if len(shape) < 3:
        return 0
    return math.prod(shape[1:-1]) if len(shape) == 3 else math.prod(shape[2:])


def _foretold(before: Floats, after: Floats, sigma_before: float, sigma_after: float) -> Floats:
    """Where the straight path of a flow through both ends: the latents without noise."""
    slope = (after - before) / (sigma_after - sigma_before)
    return after - sigma_after * slope


def _with_one(grid: Floats) -> Floats:
    """Positions x (channels + 1): a colour has a constant part."""
    flat = grid.reshape(-1, grid.shape[-1]).astype(np.float32)
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], axis=1)
