"""The largest picture that a replica admits, and the next smaller one where its card is too small.

Sizes in pixels only; it knows no card and no pipeline.
"""

from math import isqrt

Size = tuple[int, int]  # width, height


def largest_size(max_pixels: int, default: Size, multiple: int) -> Size:
    """The largest square within ``max_pixels``, or the default size where that is larger."""
    side = max(multiple, isqrt(max_pixels) // multiple * multiple)
    width, height = default
    return default if width * height >= side * side else (side, side)


def smaller_size(size: Size, multiple: int) -> Size | None:
    """About half as many pixels in the same shape; None below one multiple."""
    shrunk = tuple(int(side / 2**0.5) // multiple * multiple for side in size)
    width, height = shrunk
    return (width, height) if width and height else None
