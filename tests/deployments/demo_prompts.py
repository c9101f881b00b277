"""The fixed prompts that the demo model is judged by, with what each must show.

All are kept from training by the rule that the training script itself applies.
"""

import random
from dataclasses import dataclass

from deployments.demo.scenes import (
    COLOURS,
    PAIRS,
    SHAPES,
    SIZES,
    article,
    is_held_out,
    named,
    plural,
)

COUNT = 48  # prompts of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One prompt, the seed to draw it with and the (colour, shape) pairs it asks for."""

    prompt: str
    seed: int
    wanted: list[tuple[str, str]]


def one_object() -> list[Asked]:
    """Every colour four times, every shape six times, mostly without a size."""
    asked: list[Asked] = []
    for index in range(COUNT):
        colour = list(COLOURS)[index % len(COLOURS)]
        shape = SHAPES[(index + index // len(COLOURS)) % len(SHAPES)]
        rng = random.Random(f"one {index}")
        tails = ["", *(f" on {article(c)} {c} background" for c in COLOURS if c != colour)]
        plain = [named(colour, shape) + tail for tail in tails]
        sized = [f"a {size} {colour} {shape}{tail}" for size in SIZES for tail in tails]
        held_out = [text for text in plain if is_held_out(text)]
        choices = held_out or [text for text in sized if is_held_out(text)]
        asked.append(Asked(prompt=rng.choice(choices), seed=index, wanted=[(colour, shape)]))
    return asked


def two_objects() -> list[Asked]:
    """Pairs of different objects, and two of a kind for every fourth prompt."""
    rng = random.Random("two")
    asked: list[Asked] = []
    while len(asked) < COUNT:
        first, second = ((rng.choice(list(COLOURS)), rng.choice(SHAPES)) for _ in range(2))
        if len(asked) % 4 == 3:
            text, second = f"two {first[0]} {plural(first[1])}", first
        else:
            text = f"{named(*first)} {rng.choice(list(PAIRS))} {named(*second)}"
        if rng.random() < 0.4:
            background = rng.choice([c for c in COLOURS if c not in (first[0], second[0])])
            text += f" on {article(background)} {background} background"
        if is_held_out(text) and (first != second or text.startswith("two ")):
            asked.append(Asked(prompt=text, seed=1000 + len(asked), wanted=[first, second]))
    return asked
