"""Previews and edits on a managed pipeline: the same plan, the same bytes, the same pictures."""

import io

import pytest
from PIL import Image

from deployments.messages import GenerateJob
from tests.deployments.test_engine import config, engine_of, job
from tests.deployments.test_image_input import data_of

COST = ("copied_bytes", "peak_bytes")


@pytest.fixture(scope="module")
def engine():
    """The smaller card, on which weights come and go."""
    return engine_of(config(), rank=1)


def drawn(engine, asked: GenerateJob):
    """The result, the previews, and each component's bytes on the card after every step."""
    previews, held = [], []

    def on_step(step, of, preview=None):
        components = engine._residency.snapshot().to_dict()["components"]
        held.append({name: report["on_card_bytes"] for name, report in components.items()})
        previews.extend([] if preview is None else [preview])

    return engine.draw(asked, on_step, lambda: False), previews, held


def test_previews_move_nothing_drop_nothing_and_change_nothing(engine):
    drawn(engine, job(steps=4))  # what a like run teaches
    plain, none, held = drawn(engine, job(steps=4))
    result, previews, held_with = drawn(engine, job(steps=4, partial_images=3))
    assert none == []
    assert len({preview.tobytes() for preview in previews}) == 3
    assert result.images == plain.images
    assert held_with == held
    assert {key: result.usage[key] for key in COST} == {key: plain.usage[key] for key in COST}
    assert drawn(engine, job(steps=4))[0].images == plain.images


def test_an_edit_runs_under_management_and_leaves_the_next_picture_right(engine):
    before, *_ = drawn(engine, job())
    standing = engine.snapshot["card"]["allocated_bytes"]
    picture = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    edited, *_ = drawn(engine, job(inputs=(data_of(picture),), output_format="webp"))
    assert Image.open(io.BytesIO(edited.images[0].data)).format == "WEBP"
    assert edited.tokens["image"] == edited.tokens["output"]
    assert engine.snapshot["card"]["allocated_bytes"] == standing
    assert drawn(engine, job())[0].images == before.images
