"""The engine on simulated cards with the demo model: plans follow the memory that each card has.

Everything here is what a replica does on its owner thread, without Ray.
"""

import pytest
import torch
import yaml

from deployments.cards import find_card, wait_for_free_memory
from deployments.config import AppConfig
from deployments.engine import Engine
from deployments.errors import JobCancelled, JobError, JobFailed
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.paths import ROOT
from deployments.pipeline import load_pipeline
from deployments.stages import Stages
from offload import (
    Budget,
    CardError,
    CardFacts,
    ComponentSpec,
    DoesNotFitError,
    ResidencySpec,
    SimulatedCard,
    plan_residency,
)

QUICKSTART = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
ARGS = QUICKSTART["applications"][0]["args"]
STEPS = 3


def config(simulated=None, **args) -> AppConfig:
    """Planned once, from what is known before the start; test_placing.py measures."""
    cards = {"gpu": "never", "simulated": simulated or ARGS["cards"]["simulated"]}
    return AppConfig.model_validate({**ARGS, "cards": cards, "calibrate": False, **args})


def engine_of(config_: AppConfig, rank: int = 0, card=None) -> Engine:
    def find():
        return card or find_card(config_.cards, rank=rank, use_gpu=False)

    return Engine(config_, find, name=f"replica-{rank}", stages=Stages())


def lifetimes(engine: Engine) -> dict[str, str]:
    return {report["name"]: report["lifetime"] for report in engine.components}


def job(**changes) -> GenerateJob:
    values = {
        "request_id": "r",
        "prompt": "a red circle",
        "width": 64,
        "height": 64,
        "steps": STEPS,
        "seed": 7,
    }
    return GenerateJob(**{**values, **changes})


def draw(engine: Engine, **changes):
    return engine.draw(job(**changes), lambda step, of: None, lambda: False)


@pytest.fixture(scope="module")
def pair() -> list[Engine]:
    return [engine_of(config(), rank) for rank in (0, 1)]


def test_the_larger_card_keeps_the_text_encoder_and_the_smaller_one_does_not(pair):
    large, small = pair
    assert set(lifetimes(large).values()) == {"permanent"}
    assert lifetimes(small)["text_encoder"] != "permanent"


def test_swapping_the_two_memory_sizes_swaps_the_lifetimes(pair):
    swapped = config(ARGS["cards"]["simulated"][::-1])
    assert [lifetimes(engine_of(swapped, rank)) for rank in (0, 1)] == [
        lifetimes(pair[1]),
        lifetimes(pair[0]),
    ]


def test_the_wish_is_kept_on_both_cards(pair):
    for engine in pair:
        for report in engine.components:
            share = 0.8 if report["name"] == "text_encoder" else 1.0
            for resident, total in report["lists"].values():
                assert resident == (max(1, round(share * total)))
        assert engine.wish["text_encoder"].startswith("resident_layers=0.8")
        assert engine.explanation
        assert engine.warnings == ()


def test_memory_that_others_use_shrinks_the_plan(pair):
    card = ARGS["cards"]["simulated"][0]
    used = engine_of(config([{**card, "used": "9MiB"}]))
    assert used.card.free_bytes == pair[0].card.free_bytes - (9 << 20)
    assert set(lifetimes(used).values()) != {"permanent"}
    assert used.snapshot["card"]["allocated_bytes"] < pair[0].snapshot["card"]["allocated_bytes"]
    assert any("does not fit" in warning for warning in used.warnings)


@pytest.mark.parametrize(
    ("yaml_text", "spec", "words"),
    [
        ("99", ComponentSpec(resident_layers=99), "99"),
        (
            "{resident_layers: none, lifetime: permanent}",
            ComponentSpec(resident_layers="none", lifetime="permanent"),
            "lifetime",
        ),
        (
            "{resident_layers: all, policy: spread}",
            ComponentSpec(resident_layers="all", policy="spread"),
            "policy",
        ),
        (
            "{resident_layers: all, window: 3}",
            ComponentSpec(resident_layers="all", window=3),
            "window",
        ),
    ],
)
def test_an_option_without_effect_is_warned_of_in_the_same_words_from_yaml_and_python(
    yaml_text, spec, words
):
    args = {"components": {"transformer": yaml.safe_load(yaml_text)}}
    card = SimulatedCard(memory_bytes=32 << 20)
    from_yaml = engine_of(config(**args), card=card)
    (warning,) = from_yaml.warnings
    assert "transformer" in warning
    assert words in warning
    python = ResidencySpec(components={"transformer": spec})
    budget = Budget.of(SimulatedCard(memory_bytes=32 << 20).facts())
    assert plan_residency(python, from_yaml._residency.facts, budget).warnings == (warning,)


def test_every_card_draws_the_plain_pipelines_picture_and_moves_its_weights_each_time(pair):
    config_ = config()
    plain = load_pipeline(config_.model, config_.components)
    (picture,) = plain.generate(job(), lambda step, of: None, lambda: False)
    for engine in pair:
        for _ in range(2):
            result = draw(engine)
            assert result.images[0].data == encode_png(picture)
            assert (
                result.usage["copied_bytes"] > 0
            )  # the streamed fifth, at least: nothing is cached
            assert result.usage["peak_bytes"] <= engine.card.memory_bytes


def test_each_picture_of_a_job_equals_the_only_one_with_its_seed(pair):
    both = draw(pair[1], images=2)
    assert [image.seed for image in both.images] == [7, 8]
    for image in both.images:
        assert draw(pair[0], seed=image.seed).images == (image,)


def test_after_a_request_only_permanent_weights_are_on_the_card(pair):
    for engine in pair:
        draw(engine)
        held = engine.snapshot["card"]["allocated_bytes"]  # by the card's ledger, not by the plan
        buffers = sum(c.buffer_bytes for c in engine._residency.plan.components)
        assert held == sum(report["permanent_bytes"] for report in engine.components) + buffers


def test_a_cancelled_job_leaves_the_next_one_right(pair):
    engine = pair[1]
    right = draw(engine)
    seen = []
    with pytest.raises(JobCancelled):
        engine.draw(job(), lambda step, of: seen.append(step), lambda: len(seen) == 1)
    assert seen == [1]
    assert draw(engine).images == right.images


def test_a_job_that_the_pipeline_cannot_draw_is_refused_before_anything_moves(pair):
    with pytest.raises(JobError, match="width"):
        draw(pair[0], width=65)


def failing(engine: Engine, error: Exception, monkeypatch) -> None:
    def generate(*arguments):
        raise error

    monkeypatch.setattr(engine._pipeline, "generate", generate)


def test_a_job_that_runs_out_of_memory_says_what_to_do_and_the_replica_lives(pair, monkeypatch):
    with monkeypatch.context() as patched:
        failing(pair[0], torch.OutOfMemoryError("1 GiB"), patched)
        with pytest.raises(JobFailed, match="smaller size"):
            draw(pair[0])
    assert pair[0].sticky_error == ""
    assert draw(pair[0]).images


def full_for(engine: Engine, times: int) -> None:
    """Let the last transformer block run out of memory so many times."""
    left = [times]

    def fail(*_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("no room for 1 GiB of activations")

    block = engine._pipeline.components["transformer"].transformer_blocks[-1]
    block.register_forward_pre_hook(fail)


def lent() -> AppConfig:
    """A card on which the transformer is lent while it runs."""
    components = {"transformer": {"resident_layers": "all", "lifetime": "forward"}, "vae": "all"}
    return config(components=components, model={**ARGS["model"], "sizes": []})


def test_out_of_memory_is_answered_once_with_a_smaller_plan_and_the_same_picture():
    engine = engine_of(lent())
    before = draw(engine)
    full_for(engine, 1)
    after = draw(engine)
    assert after.images == before.images
    (note,) = after.warnings
    assert note.startswith("drawn at the second try: the card ran out of memory at 64x64, in trans")
    assert "in transformer (forward): no room for 1 GiB of activations; now" in note
    assert "`transformer: {resident_layers: 6}` in components plans so from the start" in note
    report = next(report for report in engine.components if report["name"] == "transformer")
    assert report["resident_layers"] == 6  # the demotion holds
    again = draw(engine)
    assert again.images == before.images
    assert again.warnings == ()


def test_out_of_memory_twice_fails_the_job_with_the_report_and_the_next_one_is_right():
    engine = engine_of(lent())
    before = draw(engine)
    full_for(engine, 2)
    with pytest.raises(JobFailed, match=r"keeps 6 of 12 layers.*and again: no room.*smaller size"):
        draw(engine)
    assert draw(engine).images == before.images


def test_a_card_that_fails_for_good_marks_the_engine(monkeypatch):
    engine = engine_of(config())
    failing(engine, torch.AcceleratorError("CUDA error: an illegal memory access"), monkeypatch)
    with pytest.raises(JobFailed, match="replaced"):
        draw(engine)
    assert "illegal memory access" in engine.sticky_error


class CrampedCard(SimulatedCard):
    """Promises all of its memory, and has less: what a fragmented or shared card does."""

    def _allocate(self, num_bytes, label):
        if self.usage().allocated_bytes + num_bytes > 9 << 20:
            raise torch.OutOfMemoryError(f"no room for {num_bytes} bytes of {label}")
        return super()._allocate(num_bytes, label)


def test_out_of_memory_at_start_means_a_smaller_plan_and_not_the_end():
    card = CrampedCard(memory_bytes=16 << 20, bytes_per_s=1e9, name="cramped")
    engine = engine_of(config(), card=card)
    assert engine.snapshot["card"]["peak_bytes"] <= 9 << 20
    assert card.set_aside_bytes > 0
    assert draw(engine).images


def test_a_card_that_holds_not_even_a_layer_ends_the_start_with_the_reason():
    tiny = [{"name": "tiny", "memory": "100KiB"}]
    with pytest.raises(DoesNotFitError, match="missing"):
        engine_of(config(tiny))


def test_refuse_means_that_a_wish_that_does_not_fit_ends_the_start():
    small = [{"name": "small", "memory": "5MiB"}]
    with pytest.raises(DoesNotFitError):
        engine_of(config(small, when_it_does_not_fit="refuse"))


def test_no_gpu_and_no_simulated_card_says_what_to_do():
    with pytest.raises(CardError, match=r"cards.simulated"):
        find_card(AppConfig.model_validate({"model": {"name": "d"}}).cards, rank=0, use_gpu=False)


@pytest.mark.parametrize(("free", "expected"), [([5, 7, 9, 9, 9], 9), ([5, 5, 9], 5), ([5, 4], 4)])
def test_memory_that_a_dead_process_gives_back_is_waited_for(free, expected):
    class Card:
        def facts(self):
            return CardFacts(name="gpu", memory_bytes=10, free_bytes=free.pop(0))

    assert wait_for_free_memory(Card(), sleep=lambda seconds: None).free_bytes == expected
