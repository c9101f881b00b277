"""Guarantee: a probe tells what one request really did.

On the virtual clock seconds are what the nets declare, so that every figure is known beforehand.
"""

import pytest
import torch

from offload import with_live_bytes
from offload.listener import Listener
from tests.offload.measuring_kit import FIRST_S, LAYER_S, PLANS, RATE, TRUNK_S, bench


@pytest.mark.parametrize("letters", PLANS)
def test_seconds_are_what_was_declared_whatever_is_lent(letters: str) -> None:
    b = bench(letters)
    with b.residency.measuring(source="measured at 8x8") as probe:
        b.run("net", "net", "net")
    seen = probe.measured().components["net"]
    later = {f"layers.{i}": seconds for i, seconds in enumerate(LAYER_S)}
    assert seen.later_s == pytest.approx({"trunk": TRUNK_S} | later)
    cold = {name: seconds + FIRST_S for name, seconds in later.items()}
    assert seen.first_s == pytest.approx({"trunk": TRUNK_S} | cold)
    assert seen.passes == 3
    assert seen.uses == dict.fromkeys(later, 3)
    assert seen.order == tuple(later)
    assert seen.gaps == ()
    assert probe.measured().source == "measured at 8x8"


@pytest.mark.parametrize("letters", PLANS)
def test_the_request_takes_its_compute_and_its_stalls(letters: str) -> None:
    b = bench(letters)
    with b.residency.measuring() as probe, b.residency.request() as usage:
        b.nets["net"](torch.zeros(1))
        b.nets["net"](torch.zeros(1))
    compute_s = 2 * (TRUNK_S + sum(LAYER_S)) + 3 * FIRST_S
    assert (usage.stall_s > 0) == (letters[0] == "F")
    assert probe.measured().seconds == pytest.approx(compute_s + usage.stall_s)


@pytest.mark.parametrize("letters", PLANS)
def test_order_skips_and_repeats_are_seen(letters: str) -> None:
    b = bench(letters)
    with b.residency.measuring() as probe:
        b.run(("net", (2, 0, 2)), ("net", (2,)))
    seen = probe.measured().components["net"]
    assert seen.order == ("layers.2", "layers.0")
    assert seen.uses == {"layers.2": 3, "layers.0": 1}
    assert seen.first_s["layers.2"] == pytest.approx(LAYER_S[2] + FIRST_S)
    assert seen.later_s == pytest.approx({"trunk": TRUNK_S, "layers.2": LAYER_S[2]})


@pytest.mark.parametrize("letters", PLANS)
def test_gaps_name_whoever_ran_between_two_runs(letters: str) -> None:
    b = bench(letters, "text", "control", "dit", "vae")
    with b.residency.measuring() as probe:
        b.run("text", "vae", "text", "control", "dit", "dit", "control", "dit", "vae")
    gaps = {name: seen.gaps for name, seen in probe.measured().components.items()}
    assert gaps == {
        "text": (("vae",),),
        "control": (("dit",),),
        "dit": (("control",),),
        "vae": (("text", "control", "dit"),),
    }
    assert probe.measured().components["dit"].passes == 3


def test_the_rate_is_that_of_the_link() -> None:
    b = bench("FSSS")
    with b.residency.measuring() as probe:
        b.run("net", "net")
    assert probe.measured().copy_bytes_per_s == pytest.approx(RATE)
    b = bench("PPPP")
    with b.residency.measuring() as probe:
        b.run("net")
    assert probe.measured().copy_bytes_per_s == 0


@pytest.mark.parametrize("letters", PLANS)
def test_activations_are_what_lived_beside_the_weights(letters: str) -> None:
    b = bench(letters, "small", "large")
    for layer in b.nets["large"].layers:
        layer.kilobytes = 64
    with b.residency.measuring() as probe:
        b.run("small", "large", "small")
    seen = probe.measured().components
    few = 8 * 256  # scalars that live beside it, 256 bytes each
    assert 8 << 10 <= seen["small"].activation_bytes <= (8 << 10) + few
    assert 64 << 10 <= seen["large"].activation_bytes <= (64 << 10) + few


@pytest.mark.parametrize("letters", PLANS)
def test_the_peak_is_weights_and_activations_together(letters: str) -> None:
    b = bench(letters)
    b.run("net")
    weights = b.card.usage().peak_bytes
    with b.residency.measuring() as probe, b.residency.request() as usage:
        b.nets["net"](torch.zeros(1))
        b.nets["net"](torch.zeros(1))
    measured = probe.measured()
    assert measured.peak_bytes == usage.peak_bytes
    assert measured.peak_bytes == weights + measured.components["net"].activation_bytes
    b.run("net")
    assert b.card.usage().peak_bytes == weights, "outside measuring it reports as before"


@pytest.mark.parametrize("letters", PLANS)
def test_a_pass_within_a_pass_is_told_apart(letters: str) -> None:
    b = bench(letters, "outer", "inner")
    b.nets["outer"].others = [b.nets["inner"]]
    b.nets["outer"].kilobytes_after = 32
    for layer in b.nets["inner"].layers:
        layer.kilobytes = 16
    with b.residency.measuring() as probe:
        b.run("outer", "outer")
    seen = probe.measured().components
    assert seen["outer"].later_s == pytest.approx(seen["inner"].later_s)
    assert seen["outer"].later_s["trunk"] == pytest.approx(TRUNK_S)
    assert seen["inner"].passes == seen["outer"].passes == 2
    assert 16 << 10 <= seen["inner"].activation_bytes < 32 << 10
    assert 32 << 10 <= seen["outer"].activation_bytes < 48 << 10


class Heard(Listener):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattribute__(self, name: str):
        if name.startswith(("pass_", "unit_")):
            return lambda *args: self.said.append(" ".join([name, *args]))
        return super().__getattribute__(name)


def test_each_call_is_heard_in_four_moments() -> None:
    b = bench("FSPF")
    heard = b.residency._requests.listener = Heard()
    b.run(("net", (0, 1)))
    moments = ("comes", "begins", "ends", "is_over")
    calls = [
        f"unit_{moment}" + (f" layers.{layer}" if moment == "begins" else "")
        for layer in (0, 1)
        for moment in moments
    ]
    outside = [f"pass_{moment} net" for moment in moments]
    assert heard.said == [*outside[:2], *calls, *outside[2:]]


def test_memory_that_is_given_out_while_measuring_is_no_activation() -> None:
    peaks = {}
    for letters in PLANS:
        b = bench(letters)
        with b.residency.measuring() as probe:
            b.run("net", ("net", (2, 1, 0)), ("net", (1, 1)))  # brought on the spot, too
        peaks[letters] = probe.measured().components["net"].activation_bytes
    assert len(set(peaks.values())) == 1


@pytest.mark.parametrize("letters", PLANS)
def test_without_live_bytes_everything_else_is_the_same(letters: str) -> None:
    seen = []
    for live in (True, False):
        b = bench(letters)
        with b.residency.measuring(live=live) as probe:
            assert bool(torch.utils._python_dispatch._get_current_dispatch_mode_stack()) is live
            b.run("net", "net")
        seen.append(probe.measured())
    counted, timed = seen
    assert counted.components["net"].activation_bytes > 0
    assert timed.components["net"].activation_bytes == 0
    assert with_live_bytes(timed, counted) == counted


@pytest.mark.parametrize("letters", PLANS)
def test_what_the_engine_holds_is_known_to_the_card(letters: str) -> None:
    b = bench(letters)
    standing = b.card.usage().allocated_bytes
    assert b.card.held_bytes == standing
    with b.residency.measuring(), b.residency.request():
        b.nets["net"](torch.zeros(1))
        assert b.card.held_bytes >= standing
    assert b.card.held_bytes == standing
    b.residency.detach()
    assert b.card.held_bytes == 0


# --- a card that refuses ---------------------------------------------------------------------
def test_an_activation_that_does_not_fit_is_refused_where_that_is_wanted() -> None:
    weights = 4 * 1024
    b = bench("PPPP", memory_bytes=weights + (16 << 10), refuse_activations=True)
    with b.residency.measuring() as probe:
        b.run("net")
    assert probe.measured().peak_bytes <= weights + (16 << 10)
    b.nets["net"].layers[1].kilobytes = 16
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"16\.0 KiB asked for an activation") as caught,
        b.residency.measuring(),
    ):
        b.run("net")
    assert "activations" in str(caught.value)
    b.run("net")  # it does not see them otherwise
    tolerant = bench("PPPP", memory_bytes=weights + (8 << 10))
    with tolerant.residency.measuring() as probe:
        tolerant.run("net")
    assert probe.measured().peak_bytes > weights + (8 << 10), "it measures what would be needed"


@pytest.mark.parametrize("letters", PLANS)
def test_on_the_wall_clock_seconds_are_the_hosts(letters: str) -> None:
    b = bench(letters, clock="wall", bytes_per_s=1e9)
    with b.residency.measuring() as probe:
        b.run("net", "net")
    seen = probe.measured().components["net"]
    assert 0 < sum(seen.later_s.values()) < probe.measured().seconds < 1.0
