"""From the user's words to one wish per component, with a word about whatever has no effect.

Names and counts only: it knows neither bytes nor cards, and decides nothing that was left open.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from offload.errors import SpecError
from offload.facts import ComponentFacts
from offload.selection import resident_counts
from offload.spec import GROUPS, ComponentSpec, ResidencySpec

T = TypeVar("T")

_GROUP_PREFIXES = (
    ("text_encoder", "text_encoder"),
    ("image_encoder", "image_encoder"),
    ("transformer", "dit"),
    ("unet", "dit"),
    ("prior", "dit"),
    ("vae", "vae"),
    ("vqvae", "vae"),
    ("movq", "vae"),
)


def group_of(component_name: str) -> str:
    """dit, text_encoder, image_encoder, vae or other, by the component's name."""
    matches = (group for prefix, group in _GROUP_PREFIXES if component_name.startswith(prefix))
    return next(matches, "other")


def resolve_wishes(
    spec: ResidencySpec, facts: Sequence[ComponentFacts]
) -> tuple[dict[str, ComponentSpec], tuple[str, ...]]:
    """One wish per component, and what to tell the user.

    The exact name wins over the group, the group over ``all``. SpecError on a name that is neither.
    """
    _check_names(spec.components, facts)
    warnings = list(_empty_groups(spec.components, facts))
    wishes: dict[str, ComponentSpec] = {}
    for component in facts:
        wish = _wish_for(component, spec.components)
        warnings.extend(f"{component.name}: {text}" for text in _without_effect(wish, component))
        wishes[component.name] = _clamped(wish, component)
    return wishes, tuple(warnings)


def describe_wish(wish: ComponentSpec) -> str:
    """The user's words: ``resident_layers=0.8, lifetime=auto``; ``auto`` if all is open."""
    if wish == ComponentSpec():
        return "auto"
    words = [f"resident_layers={wish.resident_layers}", f"lifetime={wish.lifetime}"]
    words += [f"policy={wish.policy}"] if wish.policy != "auto" else []
    words += [f"window={wish.window}"] if wish.window != "auto" else []
    return ", ".join(words)


def _check_names(keys: Iterable[str], facts: Sequence[ComponentFacts]) -> None:
    names = [component.name for component in facts]
    for key in keys:
        if key in names or key in GROUPS:
            continue
        close = difflib.get_close_matches(str(key), [*names, *GROUPS], n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise SpecError(
            f"no component or group is called {key!r}; {meant}"
            f"components: {', '.join(names) or 'none'}; groups: {', '.join(GROUPS)}"
        )


def _empty_groups(keys: Iterable[str], facts: Sequence[ComponentFacts]) -> Iterator[str]:
    present = (
        {"all"} | {component.group for component in facts} | {component.name for component in facts}
    )
    for key in keys:
        if key not in present:
            yield (
                f"{key}: no component belongs to this group, so the entry has no effect; "
                f"components: {', '.join(component.name for component in facts)}"
            )


def with_known(
    facts: Iterable[ComponentFacts],
    activation_bytes: Mapping[str, int],
    passes: Mapping[str, int],
) -> tuple[ComponentFacts, ...]:
    """The same facts with what else is known, by component or group; SpecError on other names.

    ``activation_bytes`` is the peak beyond weights, ``passes`` the calls of it in one request.
    """
    surveyed = tuple(facts)
    _check_names([*activation_bytes, *passes], surveyed)
    return tuple(
        replace(
            component,
            activation_bytes=_entry(component, activation_bytes, component.activation_bytes),
            passes=_entry(component, passes, component.passes),
        )
        for component in surveyed
    )


def _wish_for(component: ComponentFacts, entries: Mapping[str, ComponentSpec]) -> ComponentSpec:
    return _entry(component, entries, ComponentSpec())


def _entry(component: ComponentFacts, entries: Mapping[str, T], default: T) -> T:
    keys = (component.name, component.group, "all")
    return next((entries[key] for key in keys if key in entries), default)


def _longest_list(component: ComponentFacts) -> int:
    return max(component.lists.values(), default=0)


def _exceeds(wish: ComponentSpec, component: ComponentFacts) -> bool:
    count = wish.resident_layers
    return isinstance(count, int) and count > _longest_list(component) > 0


def _clamped(wish: ComponentSpec, component: ComponentFacts) -> ComponentSpec:
    if not _exceeds(wish, component):
        return wish
    return replace(wish, resident_layers=_longest_list(component))


def _without_effect(wish: ComponentSpec, component: ComponentFacts) -> Iterator[str]:
    """What the user wrote and will not see; in the user's wording."""
    asked = wish.resident_layers
    if not component.layers:
        yield from _without_layers(wish)
        return
    if _exceeds(wish, component):
        longest = _longest_list(component)
        yield f"resident_layers={asked} is more than a list has ({longest}); {longest} are taken"
    if asked == "auto":
        return
    resident = sum(resident_counts(component.lists, asked).values())
    if resident == 0 and wish.lifetime != "auto":
        yield (
            f"lifetime={wish.lifetime} has no effect with zero resident layers; "
            "every layer is streamed"
        )
    if wish.policy != "auto" and resident in (0, len(component.layers)):
        which = "all" if resident else "none"
        yield f"policy={wish.policy} has no effect where {which} of the layers are resident"
    if wish.window != "auto" and resident == len(component.layers):
        yield f"window={wish.window} has no effect where nothing is streamed"


def _without_layers(wish: ComponentSpec) -> Iterator[str]:
    """A component without block lists has a trunk only, which is never streamed."""
    reason = "has no effect: the component has no layers and is held as a whole"
    if wish.resident_layers not in ("auto", "all", 1.0):
        yield f"resident_layers={wish.resident_layers} {reason}"
    if wish.policy != "auto":
        yield f"policy={wish.policy} {reason}"
    if wish.window != "auto":
        yield f"window={wish.window} {reason}"
