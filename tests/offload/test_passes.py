"""Guarantee: what comes next is told in order of need, past the end only if more is expected."""

from collections.abc import Sequence

from offload.history import PassKind
from offload.passes import Pass
from offload.plan import Lifetime
from offload.schedule import LOOKAHEAD_BYTES
from offload.unit import Span, Unit
from tests.offload.nets import F, P, S

KIND = PassKind("net", "forward", ())


def units(
    count: int, lifetimes: Sequence[Lifetime] = (S,), num_bytes: int = LOOKAHEAD_BYTES
) -> list[Unit]:
    """Units named 0, 1, 2, ... of a size without memory."""
    return [
        Unit(
            str(i),
            "blocks",
            None,
            (Span(i, 0, num_bytes, 0),),
            (),
            lifetimes[i % len(lifetimes)],
            {},
        )
        for i in range(count)
    ]


def a_pass(order: list[Unit], *, uses: int = 1, more_passes: bool = False) -> Pass:
    return Pass(KIND, order, dict.fromkeys(order, uses), more_passes)


def coming(passing: Pass) -> list[tuple[int, str]]:
    return [(distance, unit.name) for distance, unit in passing.upcoming()]


def test_before_the_first_call_everything_is_ahead_in_order() -> None:
    assert coming(a_pass(units(3), more_passes=True)) == [(1, "0"), (2, "1"), (3, "2")]


def test_the_rest_of_the_last_pass_comes_and_then_nothing() -> None:
    order = units(4)
    passing = a_pass(order)
    for unit in order[:2]:
        passing.entered(unit)
    assert coming(passing) == [(1, "2"), (2, "3")]
    for unit in order[2:]:
        passing.entered(unit)
    assert coming(passing) == []


def test_while_more_passes_are_expected_the_beginning_follows_the_end() -> None:
    order = units(4)
    passing = a_pass(order, more_passes=True)
    for unit in order[:3]:
        passing.entered(unit)
    assert coming(passing) == [(1, "3"), (2, "0"), (3, "1"), (4, "2")]
    passing.entered(order[3])
    assert coming(passing) == [(1, "0"), (2, "1"), (3, "2"), (4, "3")]


def test_a_unit_used_several_times_a_pass_comes_again_until_its_uses_are_over() -> None:
    """One decode of a tiled VAE runs its blocks several times."""
    order = units(2)
    passing = a_pass(order, uses=2)
    seen = []
    for unit in (order[0], order[1], order[0], order[1]):
        passing.entered(unit)
        seen.append([name for _, name in coming(passing)])
    assert seen == [["1", "0"], ["0", "1"], ["1"], []]


def test_an_unexpected_unit_does_not_move_the_position() -> None:
    order = units(4)
    stranger = units(1)[0]
    passing = a_pass(order)
    passing.entered(order[1])
    passing.entered(stranger)
    assert coming(passing) == [(1, "2"), (2, "3")]
    assert passing.recorder.uses == {"1": 1, "0": 1}  # but it was seen


def test_a_pass_that_jumps_goes_on_from_there() -> None:
    order = units(5)
    passing = a_pass(order)
    passing.entered(order[3])
    assert coming(passing)[0] == (1, "4")
    assert [name for _, name in coming(passing)[1:]] == [
        "0",
        "1",
        "2",
    ]  # expected once, not yet seen


def test_the_way_is_opened_by_the_entry_of_the_unit_two_before() -> None:
    """Lookahead two: at the call of 1, the copy of 3 waits for the entry of 1."""
    order = units(5, [F])
    passing = a_pass(order, more_passes=True)
    assert passing.lookahead == 2
    assert [passing.gate_before(d) for d in (1, 2, 3)] == [None, None, order[0]]
    passing.entered(order[0])
    passing.entered(order[1])
    gates = {unit.name: passing.gate_before(distance) for distance, unit in passing.upcoming()}
    assert gates["2"] is order[0]
    assert gates["3"] is order[1]
    assert gates["4"] is order[2]


def test_small_units_are_looked_ahead_by_bytes() -> None:
    quarter = a_pass(units(9, [F], LOOKAHEAD_BYTES // 4))
    assert quarter.lookahead == 4
    huge = a_pass(units(9, [F], LOOKAHEAD_BYTES * 3))
    assert huge.lookahead == 2


def test_permanent_units_do_not_count_for_the_lookahead() -> None:
    order = units(2, [P, F])
    order[0].num_bytes = LOOKAHEAD_BYTES * 9
    order[1].num_bytes = LOOKAHEAD_BYTES // 8
    assert a_pass(order).lookahead == 8
    assert a_pass(units(2, [P])).lookahead >= 2
    assert a_pass([]).lookahead >= 2
    assert coming(a_pass([], more_passes=True)) == []
