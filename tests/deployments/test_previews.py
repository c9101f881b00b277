"""Previews: a linear projection of latents, learnt from finished pictures, due at even steps."""

import io

import numpy as np
import pytest
from PIL import Image

from deployments.messages import GenerateJob
from deployments.previews import (
    NUM_TAUGHT,
    Projection,
    Sketcher,
    grid_of,
    num_positions,
    preview_of,
)

RNG = np.random.default_rng(7)
CHANNELS = 5
WEIGHTS = RNG.uniform(-30, 30, (CHANNELS, 3)).astype(np.float32)  # the truth to be learnt
SIDE = 16  # pixels that a position stands for


def job(**changes) -> GenerateJob:
    values = {"request_id": "r", "prompt": "p", "width": 128, "height": 64, "steps": 8, "seed": 1}
    return GenerateJob(**{**values, **changes})


def latents(rows=4, columns=8) -> np.ndarray:
    return RNG.uniform(-1, 1, (rows, columns, CHANNELS)).astype(np.float32)


def colours(grid: np.ndarray) -> np.ndarray:
    return np.clip(grid @ WEIGHTS + 120, 0, 255)


def decoded(grid: np.ndarray) -> Image.Image:
    """What a decoder that is exactly linear would draw."""
    small = Image.fromarray(colours(grid).round().astype(np.uint8))
    size = (small.width * SIDE, small.height * SIDE)
    return small.resize(size, Image.Resampling.NEAREST)


def taught(num_pictures=3) -> Projection:
    projection = Projection()
    for _ in range(num_pictures):
        grid = latents()
        projection.learn(grid, decoded(grid))
    return projection


def test_a_linear_decoder_is_learnt_from_its_pictures():
    unseen = latents()
    picture = taught().picture(unseen)
    assert picture.size == (8, 4)
    assert np.abs(np.asarray(picture, np.float32) - colours(unseen)).max() < 3


def test_nothing_is_shown_before_anything_was_learnt():
    assert Projection().picture(latents()) is None


def test_learning_ends():
    projection = taught(NUM_TAUGHT - 1)
    assert projection.learns
    projection.learn(latents(), decoded(latents()))
    assert not projection.learns


@pytest.mark.parametrize(
    ("steps", "asked", "due"),
    [(8, 3, (2, 4, 6)), (20, 3, (5, 10, 15)), (4, 3, (1, 2, 3)), (2, 3, (1,)), (1, 3, ())],
)
def test_previews_are_spread_over_the_steps_and_never_take_the_last(steps, asked, due):
    assert job(steps=steps, partial_images=asked).preview_steps == due
    assert job(steps=steps).preview_steps == ()


@pytest.mark.parametrize(
    "packed",
    [
        lambda grid: grid.reshape(1, 32, CHANNELS),  # positions, channels
        lambda grid: grid.transpose(2, 0, 1)[None],  # channels, rows, columns
        lambda grid: grid.transpose(2, 0, 1)[None, :, None],  # channels, frames, rows, columns
    ],
)
def test_every_layout_of_latents_is_read(packed):
    grid = latents()
    assert np.array_equal(grid_of(packed(grid), 128, 64), grid)
    assert num_positions(packed(grid).shape) == 32


@pytest.mark.parametrize("shape", [(1, 31, 4), (1, 9), (1, 10**6, 4)])
def test_a_layout_that_is_not_known_gives_no_preview(shape):
    assert grid_of(np.zeros(shape, np.float32), 128, 64) is None


def sketches(sketcher: Sketcher, path: list[np.ndarray], sigmas) -> dict[int, Image.Image]:
    """Step -> preview; ``path`` holds the latents after each step."""
    found = {}
    for step, grid in enumerate(path, 1):
        if sketcher.wants(step):
            found[step] = sketcher.after(step, grid.reshape(1, -1, CHANNELS), sigmas)
    return {step: image for step, image in found.items() if image is not None}


def test_a_straight_path_from_noise_shows_the_finished_picture_from_its_second_step_on():
    noise, finished = latents(), latents()
    sigmas = np.linspace(1, 0, 9).tolist()
    path = [finished * (1 - sigma) + noise * sigma for sigma in sigmas[1:]]
    found = sketches(Sketcher(taught(), job(partial_images=3)), path, sigmas)
    assert list(found) == [2, 4, 6]
    for image in found.values():
        assert np.abs(np.asarray(image, np.float32) - colours(finished)).max() < 3


def test_where_the_path_is_not_known_the_latents_are_shown_as_they_are():
    path = [latents() for _ in range(8)]
    found = sketches(Sketcher(taught(), job(partial_images=1)), path, ())
    assert np.abs(np.asarray(found[4], np.float32) - colours(path[3])).max() < 3


def test_without_previews_latents_come_to_the_host_only_while_there_is_something_to_learn():
    learning, learnt = Sketcher(Projection(), job()), Sketcher(taught(NUM_TAUGHT), job())
    assert [step for step in range(1, 9) if learning.wants(step)] == [8]
    assert not any(learnt.wants(step) for step in range(1, 9))


def test_a_finished_picture_teaches():
    projection = Projection()
    sketcher, grid = Sketcher(projection, job(steps=1)), latents()
    sketcher.after(1, grid.reshape(1, -1, CHANNELS), ())
    sketcher.finish(decoded(grid))
    assert projection.picture(grid) is not None


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_picture_that_went_wrong_teaches_nothing(broken):
    projection = Projection()
    sketcher, grid = Sketcher(projection, job(steps=1)), latents()
    grid[0, 0, 0] = broken
    sketcher.after(1, grid.reshape(1, -1, CHANNELS), ())
    sketcher.finish(decoded(latents()))
    assert projection.picture(latents()) is None


@pytest.mark.parametrize(("name", "step", "image", "index"), [("png", 12, 1, 1), ("webp", 6, 0, 2)])
def test_a_preview_is_as_large_as_its_picture_and_says_which_it_is_of(name, step, image, index):
    sketch = Image.new("RGB", (8, 4), "red")
    asked = job(partial_images=3, images=2, output_format=name)
    preview = preview_of(asked, step, sketch)
    opened = Image.open(io.BytesIO(preview.data))
    assert (opened.format, opened.size) == (name.upper(), (128, 64))
    assert (preview.image, preview.index) == (image, index)
