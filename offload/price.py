"""What a unit of the side is worth in cost where its cap binds: it makes bounds tight.

Any price gives a right bound; the best one makes the cheapest mixture just keep the cap.
"""

from collections.abc import Iterable, Sequence

from offload.stairs import Point, hulls_of, relax

_EXPONENTS = (44, 84)  # around one byte, which is 2 ** 64 of traffic, a nanosecond
_DIGITS = 3  # binary ones of the price, after its size is found


def priced(points: Iterable[Point], price: int) -> list[Point]:
    """The points with their weights at that price, sorted for hulls."""
    return sorted(
        Point(standing, cost + price * side, cost, side, running, option)
        for standing, _, cost, side, running, option in points
    )


def price_of_side(groups: Sequence[Sequence[Point]], limit_bytes: int, cap: int) -> int:
    """Near the one that makes the cheapest mixture within the limit keep the cap, from below."""

    def exceeds(price: int) -> bool:
        relaxed = relax(hulls_of([priced(points, price) for points in groups]), limit_bytes)
        assert relaxed is not None  # the same points fit at any price
        return relaxed.side > cap

    low, high = _EXPONENTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exceeds(1 << middle) else (low, middle)
    price = 1 << low
    for digit in range(1, _DIGITS + 1):
        larger = price + (1 << low >> digit)
        if exceeds(larger):
            price = larger
    return price
