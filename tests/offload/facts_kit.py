"""Plans of made-up facts: components from a few numbers, and the mission's own in full size."""

from collections.abc import Mapping, Sequence
from typing import Any

from offload.facts import Budget, ComponentFacts, UnitFacts
from offload.plan import ComponentPlan, ResidencyPlan
from offload.planner import plan_residency
from offload.sizes import GIB, MIB
from offload.spec import ComponentSpec, ResidencySpec
from offload.wish import group_of

MISSION_WISH = ResidencySpec(
    components={
        "text_encoder": ComponentSpec(resident_layers=0.8),
        "transformer": ComponentSpec(resident_layers="all"),
        "vae": ComponentSpec(resident_layers="all"),
    }
)


def layer(name: str, list_name: str | None, num_bytes: int, **more: object) -> UnitFacts:
    return UnitFacts(name=name, list_name=list_name, num_bytes=num_bytes, **more)  # type: ignore[arg-type]


def component(
    name: str,
    lists: Mapping[str, Sequence[int]] | None = None,
    *,
    trunk_bytes: int = 0,
    compute_s: float = 0.0,
    trunk_compute_s: float = 0.0,
    **more: object,
) -> ComponentFacts:
    """Block lists by name, each the bytes of its layers; every layer computes as long."""
    layers = tuple(
        layer(f"{list_name}.{i}", list_name, num_bytes, compute_s=compute_s)
        for list_name, sizes in (lists or {}).items()
        for i, num_bytes in enumerate(sizes)
    )
    trunk = layer("trunk", None, trunk_bytes, compute_s=trunk_compute_s)
    return ComponentFacts(
        name=name,
        group=group_of(name),
        trunk=trunk,
        layers=layers,
        **more,  # type: ignore[arg-type]
    )


def budget(num_bytes: int, copy_bytes_per_s: float = 1000.0, granularity_bytes: int = 1) -> Budget:
    """Bytes count singly and seconds come out in whole numbers, unless the test says otherwise."""
    return Budget(
        num_bytes=num_bytes,
        copy_bytes_per_s=copy_bytes_per_s,
        granularity_bytes=granularity_bytes,
    )


def mission_facts() -> tuple[ComponentFacts, ComponentFacts, ComponentFacts]:
    """Qwen-Image-2.1: text encoder, transformer, vae, with the sizes measured for the mission."""
    # 53 of 66 layers and the trunk are 13.59 GiB, 11.19 of them layers.
    size = int(11.19 * GIB / 53)
    lists = {
        "model.visual.blocks": [size] * 27,
        "model.visual.deepstack_merger_list": [size] * 3,
        "model.language_model.layers": [size] * 36,
    }
    return (
        component("text_encoder", lists, trunk_bytes=int(2.40 * GIB)),
        component("transformer", {"transformer_blocks": [424 * MIB] * 32}),
        component("vae", trunk_bytes=int(1.26 * GIB)),
    )


def plan(
    facts: ComponentFacts | Sequence[ComponentFacts],
    num_bytes: int,
    when_it_does_not_fit: Any = "shrink",
    **components: Any,
) -> ResidencyPlan:
    """The plan for so many bytes; wishes by component."""
    several = [facts] if isinstance(facts, ComponentFacts) else list(facts)
    wish = ResidencySpec(components=components, when_it_does_not_fit=when_it_does_not_fit)
    return plan_residency(wish, several, budget(num_bytes))


def lifetimes(one: ComponentPlan) -> str:
    """Trunk first: ``P PPFS``."""
    letters = [unit.lifetime.value[0].upper() for unit in one.units]
    return f"{letters[0]} {''.join(letters[1:])}".strip()
