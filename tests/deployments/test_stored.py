"""A checkpoint that its configuration does not describe is said before it is loaded."""

from collections.abc import Collection
from typing import Any

from deployments.stored import disagreements
from deployments.weights import TensorHeader

BUILT = {"a.weight": (4, 8), "a.bias": (8,), "b.weight": (1000, 8)}


def stored(**shapes: Any) -> dict[str, TensorHeader]:
    return {
        name.replace("_", "."): TensorHeader(dtype="BF16", shape=shape, num_bytes=0)
        for name, shape in shapes.items()
    }


WHOLE = stored(a_weight=(4, 8), a_bias=(8,), b_weight=(1000, 8))


def said(headers: dict[str, TensorHeader], tied: Collection[str] = ()) -> list[str]:
    return list(disagreements("vae", BUILT, headers, tied))


def test_nothing_is_said_where_they_agree_or_nothing_is_there() -> None:
    assert said(WHOLE) == said({}) == []


def test_renamed_weights_agree() -> None:
    """Loading renames them."""
    assert said({f"old.{name}": header for name, header in WHOLE.items()}) == []


def test_a_shape_that_differs_is_named() -> None:
    (line,) = said(WHOLE | stored(a_weight=(4, 9), a_bias=(9,)))
    assert line.startswith(
        "vae: a.bias is [9] in the checkpoint and [8] by its config.json (and 1 "
    )
    assert line.endswith("the plan follows config.json")


def test_weights_that_are_missing_are_counted() -> None:
    (line,) = said(stored(a_weight=(4, 8), a_bias=(8,)))
    assert line.startswith("vae: the checkpoint holds 40 numbers and its config.json means 8040;")


def test_a_tied_weight_may_be_stored_once_or_twice() -> None:
    once = stored(a_weight=(4, 8), a_bias=(8,))
    assert said(once, tied={"b.weight"}) == said(WHOLE, tied={"b.weight"}) == []


def test_a_buffer_more_is_no_disagreement() -> None:
    assert said(WHOLE | stored(position_ids=(1, 77))) == []
