"""Drawing a scene from signed distances, with anti-aliased edges.

Knows shapes and scenes; knows nothing of captions' words, models or training.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from deployments.demo.scenes import COLOURS, Scene

Field = NDArray[np.float32]  # [side, side], distance in units of the shape's radius
SIDE = 128  # pixels; the size the demo model is trained for


def _polygon(corners: list[tuple[float, float]]) -> Callable[[Field, Field], Field]:
    """Signed distance to a simple polygon (negative inside), corners in order."""

    def distance(x: Field, y: Field) -> Field:
        nearest = np.full_like(x, 1e9)
        inside = np.zeros(x.shape, dtype=bool)
        for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
            ex, ey = bx - ax, by - ay
            along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0.0, 1.0)
            nearest = np.minimum(nearest, np.hypot(x - ax - along * ex, y - ay - along * ey))
            if ey != 0.0:
                crosses = ((ay > y) != (by > y)) & (x < ax + (y - ay) * ex / ey)
                inside ^= crosses
        return np.where(inside, -nearest, nearest).astype(np.float32)

    return distance


def _star_corners() -> list[tuple[float, float]]:
    turns = np.arange(10) * np.pi / 5 - np.pi / 2
    radii = np.where(np.arange(10) % 2 == 0, 1.08, 0.45)
    return [(float(r * np.cos(t)), float(r * np.sin(t))) for r, t in zip(radii, turns, strict=True)]


def _heart_corners() -> list[tuple[float, float]]:
    turn = np.linspace(0.0, 2 * np.pi, 40, endpoint=False)
    x = np.sin(turn) ** 3
    y = -(13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn) - np.cos(4 * turn)) / 16
    return [(float(a), float(b)) for a, b in zip(x, y * 1.02 - 0.08, strict=True)]


def _circle(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - np.float32(0.95)


def _ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - np.float32(0.74)) - np.float32(0.24)


def _box(x: Field, y: Field, half_x: float, half_y: float) -> Field:
    dx, dy = np.abs(x) - half_x, np.abs(y) - half_y
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return np.asarray(outside + np.minimum(np.maximum(dx, dy), 0), dtype=np.float32)


def _square(x: Field, y: Field) -> Field:
    return _box(x, y, 0.84, 0.84)


def _cross(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.98, 0.32), _box(x, y, 0.32, 0.98))


DISTANCES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _polygon([(0.0, -0.98), (1.0, 0.76), (-1.0, 0.76)]),
    "star": _polygon(_star_corners()),
    "heart": _polygon(_heart_corners()),
    "diamond": _polygon([(0.0, -1.08), (0.8, 0.0), (0.0, 1.08), (-0.8, 0.0)]),
    "cross": _cross,
    "ring": _ring,
}


def draw(scene: Scene, side: int = SIDE) -> NDArray[np.uint8]:
    """The scene as [side, side, 3] sRGB bytes; later items lie over earlier ones."""
    picture = np.empty((side, side, 3), dtype=np.float32)
    picture[:] = COLOURS[scene.background]
    for item in scene.items:
        reach = item.radius * 1.2
        top, bottom = _span(item.y, reach, side)
        left, right = _span(item.x, reach, side)
        y = ((np.arange(top, bottom, dtype=np.float32) + 0.5) / side - item.y) / item.radius
        x = ((np.arange(left, right, dtype=np.float32) + 0.5) / side - item.x) / item.radius
        grid_x, grid_y = np.meshgrid(x.astype(np.float32), y.astype(np.float32))
        distance_px = DISTANCES[item.shape](grid_x, grid_y) * (item.radius * side)
        cover = np.clip(0.5 - distance_px, 0.0, 1.0)[..., None]
        patch = picture[top:bottom, left:right]
        patch += cover * (np.asarray(COLOURS[item.colour], dtype=np.float32) - patch)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _span(centre: float, reach: float, side: int) -> tuple[int, int]:
    low, high = int((centre - reach) * side), int((centre + reach) * side) + 2
    return max(low, 0), min(high, side)
