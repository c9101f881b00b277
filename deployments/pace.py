"""How long a job takes on one card, learnt from the jobs that ended there.

A picture costs a fixed part and a part per step and megapixel; both come from what was measured,
the newest weighing most, so that a plan that changed is soon reflected. It knows no clock and no
replica.
"""

from dataclasses import dataclass
from typing import Self

MEGAPIXEL = 1024 * 1024
KEPT = 0.8  # of each job's weight when another one ends
LEAST_SPREAD = 0.01  # of the mean work: below it all jobs were alike, and the two parts are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a job decides how long it takes."""

    pixels: int
    steps: int
    images: int = 1

    @property
    def work(self) -> float:
        """Steps times megapixels of one of its pictures."""
        return self.steps * self.pixels / MEGAPIXEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of a picture on one card."""

    picture_s: float  # whatever its shape: prompts, the first copies
    work_s: float  # per step and megapixel

    def seconds_of(self, shape: Shape) -> float:
        return shape.images * (self.picture_s + self.work_s * shape.work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Weighted sums over jobs, of which ``x`` is the work and ``y`` the seconds of a picture."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def with_one(self, shape: Shape, seconds: float) -> Self:
        """This and one more job that took so long."""
        x, y = shape.work, seconds / shape.images
        return type(self)(
            weight=KEPT * self.weight + 1,
            x=KEPT * self.x + x,
            y=KEPT * self.y + y,
            xx=KEPT * self.xx + x * x,
            xy=KEPT * self.xy + x * y,
        )

    @property
    def speed(self) -> Speed | None:
        """The line of least squares, neither part below zero; None before the first job."""
        if not self.weight:
            return None
        x, y = self.x / self.weight, self.y / self.weight
        spread = self.xx / self.weight - x * x
        work_s = y / x
        if spread > (LEAST_SPREAD * x) ** 2:
            slope = (self.xy / self.weight - x * y) / spread
            work_s = min(max(slope, 0.0), work_s)
        return Speed(picture_s=y - work_s * x, work_s=work_s)
