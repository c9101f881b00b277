"""Tells which coloured shapes a picture shows, by plain geometry.

Each blob that stands out from the border's colour is stretched to a square and compared with
eight outlines. It shares only the names of colours with the demo model's own drawing.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from deployments.demo.scenes import COLOURS

Mask = NDArray[np.bool_]

GRID = 48  # side of the square that blobs are stretched to
STANDS_OUT = 45.0  # distance in sRGB from the background
LEAST_AREA = 0.004  # of the picture; smaller blobs are specks
LEAST_AGREEMENT = 0.65  # intersection over union with the best outline
FURTHEST_COLOUR = 60.0  # distance in sRGB from the nearest named colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One object in a picture; the centre in fractions of the picture's sides."""

    colour: str
    shape: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything recognised in one picture."""

    background: str
    objects: tuple[Seen, ...]

    def holds(self, wanted: list[tuple[str, str]]) -> bool:
        """Whether exactly the wanted (colour, shape) pairs are there, and nothing else."""
        return Counter((seen.colour, seen.shape) for seen in self.objects) == Counter(wanted)


def look(picture: Image.Image) -> Sight:
    """Recognise the objects of a picture of any size."""
    pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
    border = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3)])
    border = np.concatenate([border, pixels[:, :2].reshape(-1, 3), pixels[:, -2:].reshape(-1, 3)])
    background = np.median(border, axis=0)
    foreground = np.linalg.norm(pixels - background, axis=2) > STANDS_OUT
    objects = [
        _recognised(pixels, blob)
        for blob in _blobs(foreground)
        if blob.sum() >= LEAST_AREA * blob.size
    ]
    return Sight(background=_colour_name(background), objects=tuple(objects))


def _recognised(pixels: NDArray[np.float32], blob: Mask) -> Seen:
    rows, columns = np.nonzero(blob)
    colour = _colour_name(np.median(pixels[_inner(blob)], axis=0))
    height, width = blob.shape
    x = (columns.min() + columns.max() + 1) / 2 / width
    y = (rows.min() + rows.max() + 1) / 2 / height
    return Seen(colour=colour, shape=_shape_name(blob), x=float(x), y=float(y))


def _colour_name(value: NDArray[Any]) -> str:
    distances = {
        name: float(np.linalg.norm(value - np.array(known))) for name, known in COLOURS.items()
    }
    nearest = min(distances, key=lambda name: distances[name])
    return nearest if distances[nearest] <= FURTHEST_COLOUR else "unknown"


def _shape_name(blob: Mask) -> str:
    rows, columns = np.nonzero(blob)
    cut = blob[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    if not 0.6 < cut.shape[0] / cut.shape[1] < 1.7:
        return "unknown"
    at_y = ((np.arange(GRID) + 0.5) / GRID * cut.shape[0]).astype(int)
    at_x = ((np.arange(GRID) + 0.5) / GRID * cut.shape[1]).astype(int)
    stretched = cut[at_y][:, at_x]
    agreement = {
        name: float((stretched & outline).sum() / (stretched | outline).sum())
        for name, outline in OUTLINES.items()
    }
    best = max(agreement, key=lambda name: agreement[name])
    return best if agreement[best] >= LEAST_AGREEMENT else "unknown"


def _inner(blob: Mask) -> Mask:
    """The blob without its blended edge, or all of it when nothing else is left."""
    inner = blob.copy()
    for axis in (0, 1):
        for shift in (-1, 1):
            inner &= np.roll(blob, shift, axis)
    return inner if inner.any() else blob


def _blobs(mask: Mask) -> list[Mask]:
    """The 4-connected parts of a mask, by flooding from each unvisited pixel."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    found = []
    while left:
        edge, blob = [left.pop()], np.zeros_like(mask)
        while edge:
            y, x = edge.pop()
            blob[y, x] = True
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in left:
                    left.remove(near)
                    edge.append(near)
        found.append(blob)
    return found


def _star(x: NDArray[Any], y: NDArray[Any]) -> Mask:
    """A five-pointed star as the points on the inner side of at least four of five lines."""
    apex_y = y * (1 + np.cos(np.pi / 5)) / 2 + (np.cos(np.pi / 5) - 1) / 2
    across = x * np.sin(2 * np.pi / 5)
    turns = np.arange(5) * 2 * np.pi / 5 - np.pi / 2
    sides = [across * np.cos(t) + apex_y * np.sin(t) <= 0.34 for t in turns]
    return np.asarray(np.sum(sides, axis=0) >= 4)


def _outlines() -> dict[str, Mask]:
    """Each shape filling the square from -1 to 1, with y downwards."""
    steps = (np.arange(GRID) + 0.5) / GRID * 2 - 1
    x, y = np.meshgrid(steps, steps)
    r = np.hypot(x, y)
    up = -y * 1.12 + 0.1  # the heart's curve, moved so that it fills the square
    wide = x * 1.14
    return {
        "circle": r <= 1,
        "square": np.ones_like(r, dtype=bool),
        "triangle": np.abs(x) <= (y + 1) / 2,
        "star": _star(x, y),
        "heart": (wide**2 + up**2 - 1) ** 3 - wide**2 * up**3 <= 0,
        "diamond": np.abs(x) + np.abs(y) <= 1,
        "cross": (np.abs(x) <= 0.33) | (np.abs(y) <= 0.33),
        "ring": (r <= 1) & (r >= 0.51),
    }


OUTLINES = _outlines()
