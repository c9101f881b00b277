"""Ways to divide a component's layers between the lifetimes, and what each loses of the wish.

Positions and bytes of layers only: what a shape costs in time or memory is not known here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from offload.facts import ComponentFacts
from offload.plan import Lifetime, Policy
from offload.selection import resident_indices
from offload.spec import ComponentSpec, ResidentLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One way to divide a component. Layers by position; the others are streamed."""

    policy: Policy
    permanent: frozenset[int]
    forward: frozenset[int]
    trunk: Lifetime
    window: int = 2


def shapes(
    facts: ComponentFacts, wish: ComponentSpec, steps: int, *, kept: bool
) -> Iterator[Shape]:
    """On a grid of ``steps``: those that keep the wish, or (``kept`` false) smaller ones too."""
    if not facts.layers:
        for trunk in _trunk_lifetimes(facts, wish, kept=kept):
            yield Shape(
                policy=Policy.LEADING, permanent=frozenset(), forward=frozenset(), trunk=trunk
            )
        return
    pinned = frozenset(i for i, layer in enumerate(facts.layers) if layer.pinned_to_card)
    for policy in _policies(facts, wish):
        for resident, parts in _resident_sets(facts, wish, policy, steps, kept=kept):
            for permanent in _permanent_parts(resident, parts, wish, kept=kept):
                for trunk in _trunk_beside(permanent, facts, wish):
                    for window in _windows(wish, kept=kept):
                        yield Shape(
                            policy=policy,
                            permanent=permanent | pinned,
                            forward=resident - permanent - pinned,
                            trunk=trunk,
                            window=window,
                        )


def _policies(facts: ComponentFacts, wish: ComponentSpec) -> tuple[Policy, ...]:
    if wish.policy != "auto":
        return (Policy(wish.policy),)
    # While no compute time is known, time is transfer time, and which layers move is all the same.
    measured = any(layer.compute_s for layer in facts.layers)
    return (Policy.LEADING, Policy.SPREAD) if measured else (Policy.LEADING,)


def _resident_sets(
    facts: ComponentFacts, wish: ComponentSpec, policy: Policy, steps: int, *, kept: bool
) -> Iterator[tuple[frozenset[int], int]]:
    """Sets of resident layers, each with the number of parts to divide it into."""
    asked = _wished_set(facts, wish, policy)
    if asked is not None:
        yield asked, steps
        if kept:
            return
    for step in range(steps + 1):
        share: ResidentLayers = "none" if step == 0 else step / steps
        layers = resident_indices(facts.layers, share, policy)
        if asked is None or layers < asked:
            yield layers, step


def _wished_set(
    facts: ComponentFacts, wish: ComponentSpec, policy: Policy
) -> frozenset[int] | None:
    """The layers that the user fixed; None where their number is open."""
    if wish.resident_layers == "auto":
        return None
    return resident_indices(facts.layers, wish.resident_layers, policy)


def _permanent_parts(
    resident: frozenset[int], parts: int, wish: ComponentSpec, *, kept: bool
) -> Iterator[frozenset[int]]:
    """Prefixes of the resident set: the earliest layers are the permanent ones."""
    ordered = sorted(resident)
    if wish.lifetime == "permanent" and kept:
        yield resident
    elif wish.lifetime == "forward" or not parts:
        yield frozenset()
    else:
        for part in range(parts + 1):
            yield frozenset(ordered[: round(len(ordered) * part / parts)])


def _trunk_beside(
    permanent: frozenset[int], facts: ComponentFacts, wish: ComponentSpec
) -> Iterator[Lifetime]:
    """The trunk stays with permanent layers; with none it may, if the lifetime is open."""
    if permanent or facts.trunk.pinned_to_card:
        yield Lifetime.PERMANENT
        return
    yield Lifetime.FORWARD
    if wish.lifetime != "forward":
        yield Lifetime.PERMANENT


def _trunk_lifetimes(
    facts: ComponentFacts, wish: ComponentSpec, *, kept: bool
) -> tuple[Lifetime, ...]:
    if facts.trunk.pinned_to_card:
        return (Lifetime.PERMANENT,)
    if wish.lifetime == "auto" or (wish.lifetime == "permanent" and not kept):
        return (Lifetime.FORWARD, Lifetime.PERMANENT)
    return (Lifetime(wish.lifetime),)


def _windows(wish: ComponentSpec, *, kept: bool) -> tuple[int, ...]:
    asked = 2 if wish.window == "auto" else wish.window
    return (asked,) if kept or asked == 2 else (asked, 2)


# --- what is lost of the wish ----------------------------------------------------------------
def loss(facts: ComponentFacts, wish: ComponentSpec, shape: Shape) -> tuple[int, int]:
    """Bytes that are not held as the user asked, and whether the window is smaller."""
    narrower = wish.window != "auto" and shape.window < wish.window and _streams(facts, shape)
    return _lost_bytes(facts, wish, shape), int(narrower)


def _streams(facts: ComponentFacts, shape: Shape) -> bool:
    return len(shape.permanent) + len(shape.forward) < len(facts.layers)


def _lost_bytes(facts: ComponentFacts, wish: ComponentSpec, shape: Shape) -> int:
    if not facts.layers:
        as_asked = wish.lifetime in ("auto", shape.trunk) or facts.trunk.pinned_to_card
        return 0 if as_asked else facts.trunk.num_bytes
    asked = _wished_set(facts, wish, shape.policy)
    held = {
        "auto": shape.permanent | shape.forward,
        "forward": shape.forward,
        "permanent": shape.permanent,
    }[wish.lifetime]
    free = [i for i, layer in enumerate(facts.layers) if not layer.pinned_to_card]
    if asked is None:
        # The number is open, the lifetime is not: whatever is resident has it, and something is.
        others = (shape.permanent | shape.forward) - held
        kept = wish.lifetime == "auto" or not free or (bool(held) and not others.intersection(free))
        return 0 if kept else 1
    return sum(facts.layers[i].num_bytes for i in asked.intersection(free) - held)
