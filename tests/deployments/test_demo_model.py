"""The demo checkpoint draws what the prompt says, and loads without any of our code.

The pictures come from `draw`; replace that fixture to judge another way of serving the model.
"""

import json
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from deployments.demo.drawing import draw as draw_scene
from deployments.demo.scenes import BROAD, MOSTLY_SINGLE, draw_lots, is_held_out, normalised
from tests.deployments.demo_classifier import look
from tests.deployments.demo_prompts import Asked, one_object, two_objects

CHECKPOINT = Path(__file__).parents[2] / "deployments" / "demo" / "checkpoint"
RECORD = json.loads((CHECKPOINT / "training.json").read_text())
SIDE, STEPS, BATCH = RECORD["picture_side"], RECORD["denoising_steps"], 16

Draw = Callable[[list[str], list[int]], list[Image.Image]]


@pytest.fixture(scope="module")
def pipeline() -> DiffusionPipeline:
    """The checkpoint in the plain diffusers pipeline."""
    loaded = DiffusionPipeline.from_pretrained(
        CHECKPOINT, dtype=torch.float32, local_files_only=True
    )
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture(scope="module")
def draw(pipeline: DiffusionPipeline) -> Draw:
    """Pictures for prompts, each from its own seed, in order."""

    def drawn(prompts: list[str], seeds: list[int]) -> list[Image.Image]:
        pictures: list[Image.Image] = []
        for start in range(0, len(prompts), BATCH):
            chosen = slice(start, start + BATCH)
            pictures += pipeline(
                prompts[chosen],
                height=SIDE,
                width=SIDE,
                num_inference_steps=STEPS,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds[chosen]],
            ).images
        return pictures

    return drawn


@pytest.fixture(scope="module")
def drawn(draw: Draw) -> dict[str, list[Image.Image]]:
    """The pictures of both fixed sets of prompts."""
    sets = {"one": one_object(), "two": two_objects()}
    return {
        name: draw([one.prompt for one in asked], [one.seed for one in asked])
        for name, asked in sets.items()
    }


def share_right(asked: list[Asked], pictures: list[Image.Image]) -> float:
    """Share of pictures that hold exactly the objects asked for."""
    right = [look(p).holds(a.wanted) for a, p in zip(asked, pictures, strict=True)]
    return sum(right) / len(right)


def test_classifier_is_right_on_drawn_scenes() -> None:
    rng = random.Random("ground truth")
    for _ in range(150):
        scene = draw_lots(rng)
        sight = look(Image.fromarray(draw_scene(scene)))
        assert sight.holds([(item.colour, item.shape) for item in scene.items]), scene
        assert sight.background == scene.background


def test_no_prompt_is_a_training_caption() -> None:
    asked = [*one_object(), *two_objects()]
    assert all(is_held_out(one.prompt) for one in asked)
    drawn = (("scenes", BROAD), ("refine_scenes", MOSTLY_SINGLE))  # as the training script does
    seen: set[str] = set()
    for name, mix in drawn:
        rng = random.Random(f"{name.removesuffix('_scenes')} {RECORD['seed']}")
        seen |= {normalised(draw_lots(rng, mix).caption) for _ in range(RECORD[name])}
    assert not seen & {normalised(one.prompt) for one in asked}


def test_spelling_does_not_change_what_is_held_out() -> None:
    for one in [*one_object(), *two_objects()]:
        plain = " ".join(word for word in one.prompt.split() if word not in ("a", "an"))
        assert is_held_out(plain.upper().replace("GRAY", "GREY"))


def test_one_object_is_drawn_as_asked(drawn: dict[str, list[Image.Image]]) -> None:
    share = share_right(one_object(), drawn["one"])
    print(f"one object: {share:.1%} of {len(drawn['one'])} right")
    assert share >= 0.90


def test_two_objects_are_drawn_as_asked(drawn: dict[str, list[Image.Image]]) -> None:
    share = share_right(two_objects(), drawn["two"])
    print(f"two objects: {share:.1%} of {len(drawn['two'])} right")
    assert share >= 0.75


def test_other_prompts_pictures_score_low(drawn: dict[str, list[Image.Image]]) -> None:
    for asked, name in ((one_object(), "one"), (two_objects(), "two")):
        shifted = drawn[name][1:] + drawn[name][:1]
        assert share_right(asked, shifted) < 0.20


def test_noise_scores_low() -> None:
    rng = np.random.default_rng(0)
    for asked in (one_object(), two_objects()):
        sides = (len(asked), SIDE, SIDE, 3)
        noise = [Image.fromarray(p) for p in rng.integers(0, 256, sides, dtype=np.uint8)]
        assert share_right(asked, noise) < 0.20


def test_seed_decides_the_picture(draw: Draw) -> None:
    same, again, other = draw(["a red circle"] * 3, [5, 5, 6])
    assert same.tobytes() == again.tobytes()
    assert same.tobytes() != other.tobytes()


def test_loads_offline_without_our_code(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "from diffusers import DiffusionPipeline\n"
        "p = DiffusionPipeline.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "assert type(p).__name__ == 'QwenImage21Pipeline'\n"
        "assert {p.vae.dtype, p.text_encoder.dtype, p.transformer.dtype} == {torch.float32}\n"
        "assert not {'offload', 'deployments'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-I", "-c", program, str(CHECKPOINT)],
        check=True,
        cwd=tmp_path,
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
        timeout=120,
    )


def test_checkpoint_is_small_readable_and_described() -> None:
    files = [path for path in CHECKPOINT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {stat.S_IMODE(path.stat().st_mode) & 0o444 for path in files} == {0o444}
    card = (CHECKPOINT / "README.md").read_text()
    for word in ("license: apache-2.0", "## Data", "## Recipe", "## Limits", "## Scores"):
        assert word in card
    assert f"{SIDE}x{SIDE}" in card
    assert f"{STEPS} steps" in card


def test_image_conditioned_path_runs(pipeline: DiffusionPipeline) -> None:
    picture = pipeline(
        "a red circle",
        image=Image.new("RGB", (SIDE, SIDE), (40, 80, 220)),
        output_resolution=SIDE,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images[0]
    assert picture.shape[1:] == (SIDE, SIDE)
    assert bool(picture.isfinite().all())
