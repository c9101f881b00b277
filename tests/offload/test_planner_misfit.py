"""Wishes that do not fit: shrink keeps what it can and says so, refuse names what is missing."""

import pytest

from offload.errors import DoesNotFitError
from tests.offload.facts_kit import component, lifetimes, plan


def test_shrink_keeps_as_many_layers_as_fit_and_warns_once() -> None:
    facts = component("dit", {"b": [10] * 4}, trunk_bytes=5)
    made = plan(facts, 35, dit="all")
    assert lifetimes(made["dit"]) == "P PSSS"
    (warning,) = made.warnings
    assert "dit: resident_layers=all, lifetime=auto" in warning  # the wish
    assert "needs 45 B, 35 B are free, 10 bytes (10 B) are missing" in warning  # the need
    assert "1 of 4 layers and the trunk stay on the card (15 B), 3 are streamed" in warning


def test_shrink_of_a_permanent_set_keeps_the_largest_permanent_part() -> None:
    facts = [
        component("te", {"b": [10] * 4}),
        component("vae", trunk_bytes=5, activation_bytes=30),
    ]
    made = plan(facts, 50, te={"resident_layers": "all", "lifetime": "permanent"})
    # While the vae runs 50 - 30 - 5 = 15 are left: one layer; the others stay while it runs.
    assert lifetimes(made["te"]) == "P PFFF"
    assert len(made.warnings) == 1


def test_shrink_gives_up_the_lifetime_last() -> None:
    facts = [component("te", {"b": [10] * 4}), component("vae", activation_bytes=46)]
    made = plan(facts, 50, te={"resident_layers": "all", "lifetime": "permanent"})
    assert lifetimes(made["te"]) == "F FFFF"
    open_number = plan(facts, 50, te={"lifetime": "permanent"})
    assert open_number["te"].lifetime == "forward"
    assert "te: resident_layers=auto, lifetime=permanent" in open_number.warnings[0]


def test_shrink_of_a_whole_component_gives_up_its_lifetime() -> None:
    facts = [component("vae", trunk_bytes=10), component("te", activation_bytes=15)]
    made = plan(facts, 20, vae={"lifetime": "permanent"})
    assert made["vae"].lifetime == "forward"
    assert "it is on the card while it runs (10 B)" in made.warnings[0]
    assert plan(facts, 25, vae={"lifetime": "permanent"})["vae"].lifetime == "permanent"


def test_a_wide_window_is_narrowed_before_layers_are_lost() -> None:
    facts = component("dit", {"b": [10] * 8})
    wide = plan(facts, 60, dit={"resident_layers": 2, "window": 4})["dit"]
    assert (wide.window, wide.resident_layers) == (4, 2)
    made = plan(facts, 50, dit={"resident_layers": 2, "window": 4})
    assert (made["dit"].window, made["dit"].resident_layers) == (2, 2)
    assert len(made.warnings) == 1


def test_refuse_names_the_missing_bytes_and_the_nearest_plan() -> None:
    facts = [component("dit", {"b": [10] * 4}, trunk_bytes=5), component("vae", trunk_bytes=1)]
    with pytest.raises(DoesNotFitError) as raised:
        plan(facts, 36, "refuse", dit="all")
    message = str(raised.value)
    assert "dit: resident_layers=all, lifetime=auto" in message
    # the least that keeps the wish: 45 while dit runs, the vae before or after
    assert "it needs 45 B, 36 B are free, 9 bytes (9 B) are missing" in message
    assert "The nearest plan that fits: dit: " in message
    assert "vae: it" in message
    assert "when_it_does_not_fit: shrink" in message


def test_refuse_takes_what_fits() -> None:
    facts = component("dit", {"b": [10] * 4}, trunk_bytes=5)
    assert plan(facts, 45, "refuse", dit="all")["dit"].resident_layers == 4


@pytest.mark.parametrize("when", ["shrink", "refuse"])
def test_what_does_not_fit_even_streamed_names_component_bytes_and_help(when: str) -> None:
    facts = [
        component("te", {"b": [10] * 9}, trunk_bytes=7),
        component("vae", trunk_bytes=20, activation_bytes=90),
    ]
    with pytest.raises(DoesNotFitError) as raised:
        plan(facts, 100, when, te=0.5)
    message = str(raised.value)
    assert message.startswith("vae does not fit even with every layer streamed")
    assert "must hold 110 B while it runs, 100 B are free, 10 bytes (10 B) are missing" in message
    assert "free 10 B more on the card" in message
    # 20 stay or are lent; the window of te is no larger than that.
    assert "fewer pixels at once: of the 90 B of activations of vae 80 B fit" in message
    assert message.index("fewer pixels") < message.index("free 10 B more")
    with pytest.raises(DoesNotFitError, match="te does not fit") as raised:
        plan(facts[0], 26)
    assert "1 bytes (1 B) are missing" in str(raised.value)
    assert "activations" not in str(raised.value)
