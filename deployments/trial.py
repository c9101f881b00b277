"""What a few like drawings cost, and whether another plan earns its place. Pure.

It knows seconds only: neither plans nor cards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NUM_DRAWINGS = 3
SLOWER_SHARE = 0.05  # what noise may be, whatever the spread of so few drawings says
SPREADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Seconds of a usual request under one plan, drawn several times."""

    seconds: tuple[float, ...]
    peak_bytes: int = 0  # weights and activations together, in one of them

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def spread_s(self) -> float:
        """The median distance from the median."""
        return median(abs(one - self.median_s) for one in self.seconds)


def slower(before: Trial, after: Trial) -> str:
    """Why ``after`` is not kept; "" where it is as fast as noise can tell, or faster."""
    noise_s = max(SLOWER_SHARE * before.median_s, SPREADS * before.spread_s)
    more_s = after.median_s - before.median_s
    if more_s <= noise_s:
        return ""
    return (
        f"it is slower: {after.median_s:.3f} s a request instead of {before.median_s:.3f} s, "
        f"{more_s:.3f} s more where {noise_s:.3f} s may be noise"
    )


def usual_seconds(total_s: float, step_ends_s: Sequence[float], usual_steps: int) -> float:
    """Of a request with ``usual_steps``, from one with fewer (or more) of them.

    ``step_ends_s`` are the moments at which its steps ended. The first step may cost more (caches
    are filled, weights arrive), so that only the later ones say what a further one costs.
    """
    num_later = len(step_ends_s) - 1
    if num_later < 1:
        return total_s
    a_step_s = (step_ends_s[-1] - step_ends_s[0]) / num_later
    return total_s + (usual_steps - len(step_ends_s)) * a_step_s
