"""Bytes and rates: what people write is read, anything else is refused with an example."""

import pytest

from offload.errors import SpecError
from offload.sizes import GIB, KIB, MIB, format_bytes, format_rate, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("14MiB", 14 * 2**20),
        ("24GB", 24 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1.5 gib", 3 * 2**29),
        (" 8 KiB ", 8192),
        ("1TiB", 2**40),
        ("2TB", 2 * 10**12),
        ("5kB", 5000),
        ("3MB", 3_000_000),
        ("77b", 77),
        ("77", 77),
        ("1e3", 1000),
        (123, 123),
        (0, 0),
        (1024.0, 1024),
    ],
)
def test_amounts_of_memory_are_read_in_both_systems(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "wrong", ["", "GiB", "24 GiBs", "-1GiB", "1.2.3MB", -1, True, None, float("nan"), float("inf")]
)
def test_what_is_no_amount_is_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(SpecError, match="24GiB"):
        parse_bytes(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400MB/s", 4e8), ("25 GB / s", 25e9), ("1GiB/s", 2.0**30), ("400MB", 4e8), (2e9, 2e9)],
)
def test_rates_are_read(text: str | float, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("wrong", ["400MB/h", "fast", "", "0MB/s", 0, -5, "1MB/s/s", None])
def test_what_is_no_rate_is_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(SpecError, match="400MB/s"):
        parse_rate(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (14 * MIB, "14.0 MiB"),
        (int(13.59 * GIB), "13.59 GiB"),
        (GIB - 1, "1.00 GiB"),
        (-3 * MIB, "-3.0 MiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_reads_best(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_rates_are_shown_like_bytes() -> None:
    assert format_rate(400 * MIB) == "400.0 MiB/s"
