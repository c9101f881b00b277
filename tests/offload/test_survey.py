"""Guarantee: layers are found at any depth, what two units share is the trunk's, nothing moves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from offload import StateError, survey_component
from offload.survey import find_units, storage_key, survey_components
from tests.offload.odd_nets import (
    ODD,
    FusedViews,
    Lump,
    Lumps,
    OddLayouts,
    SharedModule,
    SharedParameter,
    TiedHead,
    lumps,
    make_odd,
)


def layers_of(root: nn.Module) -> dict[str, str | None]:
    """Layer -> its list."""
    return {unit.name: unit.list_name for unit in find_units(root)[1:]}


def trunk_of(root: nn.Module) -> list[str]:
    return list(find_units(root)[0].parameters)


# --- which lists -----------------------------------------------------------------------------
def test_lists_are_found_at_any_depth() -> None:
    root = Lumps(a=Lumps(b=Lumps(blocks=lumps(9, 9)), extra=Lump(1)), top=lumps(9, 9))
    assert layers_of(root) == {
        "a.b.blocks.0": "a.b.blocks",
        "a.b.blocks.1": "a.b.blocks",
        "top.0": "top",
        "top.1": "top",
    }
    assert trunk_of(root) == ["a.extra.weight"]


def test_entries_of_any_class_are_layers_and_those_without_parameters_are_not() -> None:
    entries = [nn.Linear(4, 4), nn.SiLU(), nn.Conv1d(4, 4, 1), nn.Dropout(), nn.LayerNorm(4)]
    assert list(layers_of(Lumps(blocks=nn.ModuleList(entries)))) == [
        "blocks.0",
        "blocks.2",
        "blocks.4",
    ]
    assert list(layers_of(Lumps(blocks=nn.Sequential(*entries)))) == [
        "blocks.0",
        "blocks.2",
        "blocks.4",
    ]


def test_a_list_needs_two_entries_that_own_parameters() -> None:
    one = nn.Sequential(nn.SiLU(), nn.Linear(4, 4), nn.SiLU())
    assert layers_of(Lumps(modulation=one, head=Lump(4))) == {}


def test_only_the_outermost_list_makes_layers() -> None:
    """A layer's own feed-forward list is part of the layer."""
    root = Lumps(blocks=nn.ModuleList(Lumps(attn=Lump(8), ff=lumps(4, 4)) for _ in range(9)))
    assert list(layers_of(root)) == [f"blocks.{i}" for i in range(9)]


def test_a_list_under_a_256th_of_the_component_stays_in_the_trunk() -> None:
    exactly = Lumps(big=lumps(255, 255), small=lumps(1, 1))  # 2 of 512 numbers
    assert "small.0" in layers_of(exactly)
    below = Lumps(big=lumps(255, 256), small=lumps(1, 1))  # 2 of 513: below 1/256
    assert layers_of(below) == {"big.0": "big", "big.1": "big"}
    assert trunk_of(below) == ["small.0.weight", "small.1.weight"]


def test_a_list_that_is_not_found_makes_the_whole_component_one_trunk() -> None:
    root = Lumps(a=Lump(8), b=Lumps(c=Lump(8), d=nn.ModuleDict({"e": Lump(8), "f": Lump(8)})))
    facts = survey_component(root, "odd")
    assert facts.layers == ()
    assert facts.trunk.num_bytes == facts.weight_bytes == 4 * 256


def test_the_component_itself_may_be_the_list() -> None:
    root = nn.Sequential(Lump(4), nn.Tanh(), Lump(4))
    assert layers_of(root) == {"0": "layers", "2": "layers"}
    assert trunk_of(root) == []


# --- opening large entries -------------------------------------------------------------------
def test_a_large_entry_is_opened_where_lists_hold_half_of_it_and_the_rest_joins_the_trunk() -> None:
    stage = Lumps(inner=lumps(25, 25), rest=Lump(50))  # 100 of 180: above 1/8, half in a list
    root = Lumps(blocks=nn.ModuleList([stage, Lump(20), Lump(20), Lump(20), Lump(20)]))
    assert layers_of(root) == {
        "blocks.0.inner.0": "blocks.0.inner",
        "blocks.0.inner.1": "blocks.0.inner",
        **{f"blocks.{i}": "blocks" for i in range(1, 5)},
    }
    assert trunk_of(root) == ["blocks.0.rest.weight"]


def test_a_large_entry_whose_lists_hold_less_than_half_stays_a_layer() -> None:
    stage = Lumps(inner=lumps(25, 24), rest=Lump(50))
    root = Lumps(blocks=nn.ModuleList([stage, Lump(20)]))
    assert list(layers_of(root)) == ["blocks.0", "blocks.1"]
    assert trunk_of(root) == []


def test_an_entry_of_an_eighth_is_not_opened() -> None:
    blocks = nn.ModuleList(Lumps(inner=lumps(4, 4)) for _ in range(8))  # each exactly 1/8
    assert list(layers_of(Lumps(blocks=blocks))) == [f"blocks.{i}" for i in range(8)]
    seven = nn.ModuleList(Lumps(inner=lumps(4, 4)) for _ in range(7))
    assert len(layers_of(Lumps(blocks=seven))) == 14


def test_a_sequential_entry_is_opened_whatever_its_size() -> None:
    """Its entries may be called one by one (AutoencoderDC)."""
    blocks = nn.ModuleList(nn.Sequential(Lump(4), Lump(4)) for _ in range(9))
    assert list(layers_of(Lumps(blocks=blocks))) == [
        f"blocks.{i}.{j}" for i in range(9) for j in (0, 1)
    ]


def test_a_sequential_entry_without_a_list_inside_stays_a_layer() -> None:
    blocks = nn.ModuleList(nn.Sequential(Lump(4), nn.Tanh()) for _ in range(9))
    assert list(layers_of(Lumps(blocks=blocks))) == [f"blocks.{i}" for i in range(9)]


def test_an_entry_that_cannot_be_called_is_opened_or_joins_the_trunk() -> None:
    """A ModuleList has no forward: it can never be a layer itself."""
    lists = nn.ModuleList([lumps(4, 4), lumps(4, 4), nn.ModuleList([Lump(4)])])
    root = Lumps(blocks=lists)
    assert list(layers_of(root)) == ["blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"]
    assert trunk_of(root) == ["blocks.2.0.weight"]


# --- storages with two users -----------------------------------------------------------------
def test_tied_embedding_and_head_belong_to_the_trunk_once() -> None:
    net = TiedHead()
    assert trunk_of(net) == ["embed.weight"]
    assert survey_component(net, "te").trunk.num_bytes == 8 * 8 * 4


def test_a_parameter_of_a_layer_that_the_trunk_also_holds_belongs_to_the_trunk() -> None:
    net = TiedHead()
    net.blocks[1].weight = net.embed.weight
    assert trunk_of(net) == ["embed.weight"]
    assert list(find_units(net)[2].parameters) == ["blocks.1.bias"]


def test_a_parameter_of_two_layers_belongs_to_the_trunk() -> None:
    net = SharedParameter()
    assert trunk_of(net) == ["blocks.0.bias"]
    assert [list(u.parameters) for u in find_units(net)[1:]] == [
        ["blocks.0.weight"],
        ["blocks.1.weight", "blocks.1.bias"],
        ["blocks.2.weight"],
    ]


def test_a_module_of_two_layers_or_of_a_layer_and_the_trunk_belongs_to_the_trunk() -> None:
    net = SharedModule()
    assert trunk_of(net) == [
        "norm.weight",
        "norm.bias",
        "blocks.0.norm.weight",
        "blocks.0.norm.bias",
    ]
    for i, unit in enumerate(find_units(net)[1:]):
        assert list(unit.parameters) == [f"blocks.{i}.fc.weight", f"blocks.{i}.fc.bias"]


def test_views_of_one_storage_in_two_layers_belong_to_the_trunk_and_count_once() -> None:
    net = FusedViews()
    assert trunk_of(net) == ["blocks.0.bias", "blocks.1.bias"]
    facts = survey_component(net, "net")
    assert facts.trunk.num_bytes == 256  # 2 x 8 numbers, one storage
    assert facts.layers[0].num_bytes == 3 * 8 * 8 * 4  # three fused matrices, one storage


def test_a_layer_that_is_also_named_elsewhere_stays_a_layer() -> None:
    """Its call is the same call by either name."""
    root = Lumps(blocks=lumps(8, 8))
    root.first = root.blocks[0]
    assert list(layers_of(root)) == ["blocks.0", "blocks.1"]
    assert trunk_of(root) == []


def test_layers_left_without_parameters_are_no_layers() -> None:
    root = Lumps(blocks=lumps(8, 8, 8))
    root.blocks[2].weight = root.blocks[1].weight
    assert list(layers_of(root)) == ["blocks.0"]
    assert trunk_of(root) == ["blocks.1.weight"]


def test_a_module_that_holds_its_parent_is_surveyed() -> None:
    root = Lumps(blocks=lumps(8, 8))
    root.helper = Lumps(back=root)
    assert list(layers_of(root)) == ["blocks.0", "blocks.1"]


@settings(max_examples=30)
@given(shape=st.lists(st.lists(st.integers(0, 40), max_size=4), min_size=1, max_size=5))
def test_every_parameter_has_exactly_one_unit(shape: list[list[int]]) -> None:
    children = {f"c{i}": lumps(*counts) for i, counts in enumerate(shape)}
    root = Lumps(tail=Lump(3), **children)
    units = find_units(root)
    found = [path for unit in units for path in unit.parameters]
    assert sorted(found) == sorted(name for name, _ in root.named_parameters())
    owners: dict[int, set[str]] = {}
    for unit in units:
        for parameter in unit.parameters.values():
            owners.setdefault(storage_key(parameter), set()).add(unit.name)
    assert all(len(names) == 1 for names in owners.values())


# --- bytes, and nothing moves ----------------------------------------------------------------
def test_every_storage_is_rounded_up_to_256_bytes() -> None:
    facts = survey_component(Lumps(blocks=lumps(1, 64, 65)), "net")
    assert [layer.num_bytes for layer in facts.layers] == [256, 256, 512]


def test_bytes_count_the_used_span_of_a_storage_with_its_strides() -> None:
    net = OddLayouts()
    block = net.blocks[0]
    spans = {
        "columns": 64,  # 8 x 8 of 1 byte
        "rows": 64,  # two of four rows of 8 x 4 bytes
        "every_second": 60 + 4,  # offset 4, 15 numbers apart: from byte 0 of a 16-byte step
        "scale": 4,
        "brain": 16,
        "codes": 24,
        "kernel": 64,
    }
    expected = sum(-(-size // 256) * 256 for size in spans.values())
    assert {name for name, p in block.named_parameters() if p.numel()} == set(spans)
    assert survey_component(net, "net").layers[0].num_bytes == expected


def test_buffers_are_counted_apart_and_once() -> None:
    root = Lumps(blocks=lumps(8, 8))
    root.register_buffer("table", torch.zeros(65))
    root.register_buffer("same", root.table)
    root.register_buffer("empty", torch.zeros(0))
    assert survey_component(root, "net").buffer_bytes == 512


@pytest.mark.parametrize("name", ODD)
def test_the_survey_moves_nothing(name: str) -> None:
    net = make_odd(name)
    before = {
        path: (id(p), p.data_ptr()) for path, p in net.named_parameters(remove_duplicate=False)
    }
    survey_component(net, "net")
    assert before == {
        path: (id(p), p.data_ptr()) for path, p in net.named_parameters(remove_duplicate=False)
    }


def test_weights_that_are_not_loaded_are_surveyed_alike_and_refused_where_they_are_placed() -> None:
    with torch.device("meta"):
        root = Lumps(blocks=lumps(8, 8))
    assert survey_component(root, "net") == survey_component(Lumps(blocks=lumps(8, 8)), "net")
    with pytest.raises(StateError, match=r"blocks\.0\.weight is on the meta device; load"):
        survey_components({"net": root}, {})


@pytest.mark.parametrize(
    ("name", "group"),
    [("transformer_2", "dit"), ("text_encoder_3", "text_encoder"), ("vae", "vae"), ("unet", "dit")],
)
def test_components_are_grouped_by_name(name: str, group: str) -> None:
    assert survey_component(Lump(4), name).group == group
