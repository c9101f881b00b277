"""Scenes and their captions: which shapes lie where, in which colours, and the words for it.

Knows nothing of pixels, tensors or models. Everything random comes from the given generator.
"""

import random
import zlib
from dataclasses import dataclass

COLOURS: dict[str, tuple[int, int, int]] = {  # sRGB, 0..255
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 215, 50),
    "orange": (245, 135, 25),
    "purple": (130, 50, 170),
    "pink": (250, 150, 190),
    "cyan": (60, 200, 220),
    "brown": (120, 75, 40),
    "black": (20, 20, 20),
    "white": (250, 250, 250),
    "gray": (140, 140, 140),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross", "ring")
COUNTS = {2: "two", 3: "three", 4: "four"}
POSITIONS = {
    "on the left": (-0.24, 0.0),
    "on the right": (0.24, 0.0),
    "at the top": (0.0, -0.24),
    "at the bottom": (0.0, 0.24),
}
SIZES = {"small": 0.15, "large": 0.4}
PAIRS = {  # words between two objects -> where the first lies, seen from the middle
    "and": (-1.0, 0.0),
    "next to": (-1.0, 0.0),
    "to the left of": (-1.0, 0.0),
    "to the right of": (1.0, 0.0),
    "above": (0.0, -1.0),
    "below": (0.0, 1.0),
}
DEFAULT_BACKGROUNDS = ("white", "black", "gray", "blue", "yellow")
HELD_OUT_ONE_IN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One shape of one colour; centre and radius in fractions of the picture's side."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A picture before it is drawn: the background, what lies on it and the words for both."""

    caption: str
    background: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often each kind of scene comes up, and how much a lone object's place and size vary."""

    single: float
    several: float
    pair: float
    looseness: float = 1.0


BROAD = Mix(single=0.3, several=0.15, pair=0.55)
MOSTLY_SINGLE = Mix(single=0.6, several=0.1, pair=0.3, looseness=0.5)


def normalised(caption: str) -> str:
    """The caption's words without case, articles and spelling: what the held-out rule looks at."""
    return " ".join(
        word for word in caption.lower().replace("grey", "gray").split() if word not in ("a", "an")
    )


def is_held_out(caption: str) -> bool:
    """Whether a caption, in any spelling, is kept from training (one in eight, by checksum)."""
    return zlib.crc32(normalised(caption).encode()) % HELD_OUT_ONE_IN == 0


def article(word: str) -> str:
    """The indefinite article that fits before `word`."""
    return "an" if word[0] in "aeiou" else "a"


def named(colour: str, shape: str, *, with_article: bool = True) -> str:
    """The noun phrase for one object, such as "a red circle"."""
    return f"{article(colour)} {colour} {shape}" if with_article else f"{colour} {shape}"


def plural(shape: str) -> str:
    """The shape's name for two or more."""
    return shape + ("es" if shape.endswith("s") else "s")


def default_background(colours: tuple[str, ...]) -> str:
    """The background of a caption that names none: the first of a fixed list that is not used."""
    return next(name for name in DEFAULT_BACKGROUNDS if name not in colours)


def draw_lots(rng: random.Random, mix: Mix = BROAD) -> Scene:
    """One random scene whose caption is not held out."""
    weights = (mix.single, mix.several, mix.pair)
    while True:
        kind = rng.choices(("single", "several", "pair"), weights)[0]
        if kind == "single":
            scene = _single(rng, mix.looseness)
        else:
            scene = _several(rng) if kind == "several" else _pair(rng)
        if not is_held_out(scene.caption):
            return scene


def all_words() -> list[str]:
    """Sentences that hold every word a caption can have, for the tokenizer's training."""
    colours = [*COLOURS, "grey"]
    lines = [f"{colour} {shape}" for colour in colours for shape in SHAPES]
    lines += [
        f" {article(c)} {c} {plural(s)} on {article(c)} {c} background"
        for c in colours
        for s in SHAPES
    ]
    lines += [f"{start} {tail}" for start in ("A", "An", "a", "an") for tail in (*SIZES, *colours)]
    lines += [f"{text} {tail}" for text in COUNTS.values() for tail in (*PAIRS, *POSITIONS)]
    capitals = (*colours, *COUNTS.values(), *SIZES)
    lines += [f"{word.capitalize()} {word}" for word in capitals] * 2
    return lines


def _finish(
    rng: random.Random, text: str, items: tuple[Item, ...], named_background: float
) -> Scene:
    colours = tuple(item.colour for item in items)
    background = default_background(colours)
    if rng.random() < named_background:
        background = rng.choice([name for name in COLOURS if name not in colours])
        text = f"{text} on {article(background)} {background} background"
    if rng.random() < 0.3:
        text = text.replace("gray", "grey")
    if rng.random() < 0.25:
        text = text[0].upper() + text[1:]
    return Scene(caption=text, background=background, items=items)


def _jitter(rng: random.Random, amount: float) -> float:
    return rng.uniform(-amount, amount)


def _single(rng: random.Random, looseness: float) -> Scene:
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    x, y = (0.5 + _jitter(rng, 0.06 * looseness) for _ in range(2))
    radius = 0.28 + _jitter(rng, 0.03 * looseness)
    text = named(colour, shape, with_article=rng.random() < 0.75)
    kind = rng.random()
    if kind < 0.2:
        size = rng.choice(list(SIZES))
        prefix = "a " if text.startswith(("a ", "an ")) else ""
        text = f"{prefix}{size} {colour} {shape}"
        radius = SIZES[size] * rng.uniform(1.0 - 0.08 * looseness, 1.0)
    elif kind < 0.4:
        where = rng.choice(list(POSITIONS))
        dx, dy = POSITIONS[where]
        x, y = 0.5 + dx + _jitter(rng, 0.03), 0.5 + dy + _jitter(rng, 0.03)
        radius = rng.uniform(0.17, 0.2)
        text = f"{text} {where}"
    item = Item(colour=colour, shape=shape, x=x, y=y, radius=radius)
    return _finish(rng, text, (item,), 0.6)


def _several(rng: random.Random) -> Scene:
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    count = rng.choices((2, 3, 4), weights=(0.5, 0.25, 0.25))[0]
    if count == 2:
        centres, radius = [(0.27, 0.5), (0.73, 0.5)], rng.uniform(0.17, 0.2)
    elif count == 3:
        centres, radius = [(0.5, 0.28), (0.27, 0.7), (0.73, 0.7)], rng.uniform(0.15, 0.18)
    else:
        centres = [(0.28, 0.28), (0.72, 0.28), (0.28, 0.72), (0.72, 0.72)]
        radius = rng.uniform(0.15, 0.18)
    dx, dy = _jitter(rng, 0.03), _jitter(rng, 0.03)
    items = tuple(
        Item(colour=colour, shape=shape, x=x + dx, y=y + dy, radius=radius) for x, y in centres
    )
    return _finish(rng, f"{COUNTS[count]} {colour} {plural(shape)}", items, 0.5)


def _pair(rng: random.Random) -> Scene:
    colours = [rng.choice(list(COLOURS)) for _ in range(2)]
    shapes = [rng.choice(SHAPES) for _ in range(2)]
    if colours[0] == colours[1] and shapes[0] == shapes[1]:
        return _pair(rng)
    words = rng.choices(list(PAIRS), weights=(0.34, 0.2, 0.08, 0.08, 0.15, 0.15))[0]
    dx, dy = PAIRS[words]
    radius = rng.uniform(0.17, 0.2)
    x, y = 0.5 + _jitter(rng, 0.03), 0.5 + _jitter(rng, 0.03)
    items = tuple(
        Item(
            colour=colours[index],
            shape=shapes[index],
            x=x + sign * dx * 0.24,
            y=y + sign * dy * 0.24,
            radius=radius * rng.uniform(0.95, 1.05),
        )
        for index, sign in ((0, 1.0), (1, -1.0))
    )
    articles = rng.random() < 0.8
    first, second = (named(colours[i], shapes[i], with_article=articles) for i in range(2))
    return _finish(rng, f"{first} {words} {second}", items, 0.35)
