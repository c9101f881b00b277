"""Qwen-Image-2.1 at real size: what each card gets, and a page that says what the planner says."""

import re

import pytest

from deployments.estimates import estimates_of
from offload import DoesNotFitError, Lifetime, explain, format_bytes, predicted
from scripts.mission_case import (
    ALL_FORWARD,
    ALL_PERMANENT,
    FREE,
    LARGE,
    SIZES,
    SMALL,
    Case,
    Wish,
    turning_point,
    untiled_case,
    whole_case,
)
from scripts.mission_page import PAGE, block_names, blocks, filled
from tests.docs import table_rows

GIB = 1 << 30


@pytest.fixture(scope="module")
def case() -> Case:
    return whole_case()


@pytest.fixture(scope="module")
def untiled() -> Case:
    return untiled_case()


def gib(num_bytes: int) -> float:
    return num_bytes / GIB


# --- the model -----------------------------------------------------------------------------------
def test_the_parts_have_the_sizes_of_the_real_model(case: Case) -> None:
    assert gib(case["transformer"].weight_bytes) == pytest.approx(13.25, abs=0.005)
    assert gib(case["vae"].weight_bytes) == pytest.approx(1.26, abs=0.005)
    assert gib(case["text_encoder"].trunk.num_bytes) == pytest.approx(2.40, abs=0.005)
    assert gib(151936 * 4096 * 2) == pytest.approx(1.16, abs=0.005)  # the head, in bfloat16


def test_the_estimates_of_the_page_are_those_that_are_shipped(case: Case) -> None:
    shipped = {name: one.num_bytes for name, one in estimates_of(case.config).items()}
    shipped["vae, whole"] = shipped.pop("vae")
    shipped["vae, in tiles"] = estimates_of(case.config)["vae"].with_settings["tiling"]
    rows = table_rows("docs/qwen-image-2.1.md", "Where the activations come from")
    assert {name: cell for name, cell, _ in rows} == {
        name: f"{gib(num_bytes):.3f} GiB" for name, num_bytes in shipped.items()
    }


def test_the_serve_file_sets_aside_the_estimates_rounded_up(case: Case) -> None:
    estimates = estimates_of(case.config)
    for name, entry in case.config.components.items():
        estimate = min([estimates[name].num_bytes, *estimates[name].with_settings.values()])
        assert estimate < entry.activation_bytes < 1.12 * estimate, name


# --- two cards -----------------------------------------------------------------------------------
def test_with_31_gib_free_all_of_the_wish_stays(case: Case) -> None:
    plan = case.plan(case.wish, LARGE)
    assert case.stays(LARGE)
    encoder = plan["text_encoder"]
    held = [layer for layer in encoder.layers if layer.lifetime is Lifetime.PERMANENT]
    assert (len(held), len(encoder.layers)) == (53, 66)
    assert gib(sum(layer.num_bytes for layer in held)) == pytest.approx(11.196, abs=0.0005)
    assert encoder.trunk.lifetime is Lifetime.PERMANENT
    assert plan.fits


def test_with_23_gib_free_the_sum_does_not_fit_and_the_planner_says_by_how_much(case: Case) -> None:
    with pytest.raises(DoesNotFitError) as raised:
        case.plan(case.wish_for_good, SMALL)
    found = re.search(r"(\d+) bytes \(.*\) are missing", str(raised.value))
    assert found is not None
    # The encoder needs most while it runs: two of its streamed layers, and 0.4 of activations.
    running = 0.4 + gib(2 * max(layer.num_bytes for layer in case["text_encoder"].layers))
    weights = 11.196 + 2.40 + 13.25 + 1.26
    expected = weights + running - gib(case.budget(SMALL).num_bytes)
    num_places = 53 + 32 + 18 + 3 + 2  # of 2 MiB each, in which up to 2 MiB are lost
    assert expected <= gib(int(found[1])) <= expected + gib(num_places * (2 << 20))


def test_there_it_finds_the_mix_that_moves_least(case: Case) -> None:
    plan = case.plan(case.wish, SMALL)
    assert plan.fits
    assert not case.stays(SMALL)
    encoder = plan["text_encoder"]
    assert encoder.resident_layers == 53  # the wish is kept
    assert Lifetime.STREAMED not in {unit.lifetime for unit in plan["transformer"].units}
    assert {one.lifetime for one in plan.components} & {"mixed", "forward"}
    # Nothing that is lent could stay instead: it would need more than is left.
    left = plan.budget.num_bytes - plan.peak_bytes
    assert left < min(layer.num_bytes for layer in plan["transformer"].layers)
    moved = predicted(plan, case.facts)["h2d_bytes"]
    assert moved < _moved(case, ALL_FORWARD, SMALL)


# --- five sizes, four wishes ---------------------------------------------------------------------
@pytest.mark.parametrize("computing", [False, True], ids=["copies", "with computation"])
@pytest.mark.parametrize("size", SIZES)
def test_the_planners_choice_is_never_slower(case: Case, size: str, computing: bool) -> None:
    facts = case.with_compute if computing else case.facts
    free = predicted(case.plan(FREE, size, facts), facts)["request_s"]
    for wish in (case.wish, ALL_FORWARD, ALL_PERMANENT):
        try:
            other = predicted(case.plan(wish, size, facts), facts)["request_s"]
        except DoesNotFitError:
            continue
        assert free <= 1.01 * other  # within one percent it prefers fewer bytes


def test_what_moves_is_what_does_not_stay(case: Case) -> None:
    weights = sum(one.weight_bytes for one in case.facts)
    assert _moved(case, ALL_FORWARD, LARGE) == weights  # once a request
    assert _moved(case, ALL_PERMANENT, "48GiB") == 0
    streamed = case.plan(case.wish, LARGE)["text_encoder"].streamed
    assert _moved(case, case.wish, LARGE) == sum(layer.num_bytes for layer in streamed)


def test_copies_alone_take_the_links_seconds(case: Case) -> None:
    plan = case.plan(ALL_FORWARD, LARGE)
    ahead = predicted(plan, case.facts)
    assert ahead["request_s"] == pytest.approx(ahead["h2d_bytes"] / 25e9)


def _moved(case: Case, wish: Wish, size: str) -> int:
    moved: int = predicted(case.plan(wish, size), case.facts)["h2d_bytes"]
    return moved


# --- when the answer flips -----------------------------------------------------------------------
def test_one_byte_more_of_activations_and_the_wish_no_longer_stays(case: Case) -> None:
    most = turning_point(case, "vae", LARGE)
    assert case.stays(LARGE, case.with_activation("vae", most))
    assert not case.stays(LARGE, case.with_activation("vae", most + 1))
    plan = case.plan(case.wish, LARGE)
    assert most == plan.budget.num_bytes - plan.standing_bytes - plan.lent_bytes_of(plan["vae"])


def test_an_untiled_decode_does_not_leave_room_and_explain_names_the_setting(untiled: Case) -> None:
    assert gib(untiled["vae"].activation_bytes) > 12.0
    assert not untiled.stays(LARGE)
    assert untiled.plan(untiled.wish, LARGE).fits
    ((setting, tiled_bytes),) = untiled["vae"].activation_with
    assert setting == "tiling"
    freed = untiled["vae"].activation_bytes - tiled_bytes
    assert gib(freed) == pytest.approx(11.2, abs=0.05)
    plan = untiled.plan(untiled.wish, LARGE)
    assert f"tiling would free {format_bytes(freed)}" in explain(plan, untiled.facts)


# --- the page ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def made(case: Case, untiled: Case) -> dict[str, str]:
    return blocks(case, untiled)


def test_the_page_says_what_the_planner_says(made: dict[str, str]) -> None:
    page = PAGE.read_text()
    assert block_names(page) == list(made)
    assert filled(page, made) == page, "run `python -m scripts.mission_page --write`"


@pytest.mark.parametrize("figure", [r"[\d.]+ s, [\d.]+ GiB", r"\(\d+ bytes\)", r"\d+/66 mixed"])
def test_a_page_with_another_figure_is_noticed(made: dict[str, str], figure: str) -> None:
    page = PAGE.read_text()
    stale = re.sub(figure, lambda found: found[0].translate(str.maketrans("123", "789")), page)
    assert stale != page
    assert filled(stale, made) == page
