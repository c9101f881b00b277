"""Guarantee: only a parameter's data is ever exchanged, and a released one is empty."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from offload import StateError
from offload.survey import find_units
from offload.unit import Unit, UnitState, placeholder_of
from tests.offload.nets import P, S, virtual_card
from tests.offload.odd_nets import QKV, FusedViews, OddBlock, TiedHead

CPU = torch.device("cpu")


def whole(module: nn.Module, lifetime=S) -> Unit:
    """All of a module without lists, as one unit."""
    (found,) = find_units(module)
    return Unit.build(found, lifetime, CPU)


def filled(unit: Unit) -> torch.Tensor:
    """Memory with the unit's bytes, as a transfer would fill it."""
    memory = torch.full((unit.num_bytes,), 0xFF, dtype=torch.uint8)
    for span, source in unit.loaded_bytes():
        memory[span.offset : span.offset + span.num_bytes] = source
    return memory


def look(module: nn.Module) -> dict[str, tuple[object, ...]]:
    return {
        name: (id(p), p.dtype, p.device, p.shape, p.stride(), p.requires_grad, p.is_inference())
        for name, p in module.named_parameters()
    }


# --- placeholders ----------------------------------------------------------------------------
@given(
    shape=st.lists(st.integers(0, 3), max_size=5),
    dtype=st.sampled_from(
        [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool]
    ),
)
def test_placeholder_has_dtype_device_and_dimensions_and_no_element(shape, dtype) -> None:
    released = placeholder_of(torch.empty(shape, dtype=dtype), torch.device("meta"))
    assert released.dtype is dtype
    assert released.device == torch.device("meta")  # the card's, wherever the weight lies
    assert set(released.shape) == {0}
    assert released.dim() == {0: 1, 2: 1}.get(len(shape), len(shape))


def test_a_released_matrix_scalar_and_class_token_raise_when_used() -> None:
    """(0, n) would pass F.linear, a flat class token would drop out of cat."""
    x = torch.rand(3, 8)
    matrix, scalar = (placeholder_of(torch.rand(shape), CPU) for shape in ((8, 8), ()))
    token = placeholder_of(torch.rand(1, 1, 8), CPU)
    with pytest.raises(RuntimeError):
        F.linear(x, matrix)
    with pytest.raises(RuntimeError):
        F.embedding(torch.zeros(2, dtype=torch.int64), matrix)
    with pytest.raises(RuntimeError):
        torch.cat([token, x[None]], dim=1)
    with pytest.raises(RuntimeError):
        x * scalar


# --- binding ---------------------------------------------------------------------------------
@pytest.mark.parametrize("inference", [False, True])
def test_binding_and_releasing_changes_nothing_but_data(inference: bool) -> None:
    block = OddBlock()
    block.scale.requires_grad_(True)
    unit = whole(block)
    memory = filled(unit)
    before = look(block)
    with torch.inference_mode(inference):
        unit.bind(memory)
        assert look(block) == before
        unit.release()
        flags = {name: (seen[0], *seen[5:]) for name, seen in look(block).items()}
        assert flags == {name: (seen[0], *seen[5:]) for name, seen in before.items()}
        unit.bind(memory)
    assert look(block) == before
    assert unit.state is UnitState.BOUND


@pytest.mark.parametrize(
    "make", [OddBlock, QKV, lambda: nn.Linear(3, 5), lambda: nn.Conv2d(2, 3, 3)]
)
def test_bound_parameters_read_their_bytes_from_the_memory(make) -> None:
    module = make()
    before = [(p.detach().clone(), p.stride()) for p in module.parameters()]
    unit = whole(module)
    memory = filled(unit)
    unit.bind(memory)
    low, high = memory.data_ptr(), memory.data_ptr() + memory.numel()
    for bound, (weight, stride) in zip(module.parameters(), before, strict=True):
        assert torch.equal(bound, weight)
        assert bound.stride() == stride
        assert low <= bound.data_ptr() < high or bound.numel() == 0
    memory.zero_()
    assert not any(p.float().any() for p in module.parameters())


def test_a_transposed_float8_matrix_stays_transposed() -> None:
    block = OddBlock()
    assert block.columns.stride() == (1, 8)
    unit = whole(block)
    unit.bind(filled(unit))
    assert block.columns.stride() == (1, 8)


def test_every_storage_starts_on_256_bytes_and_shared_ones_are_held_once() -> None:
    unit = whole(QKV())
    assert [span.offset % 256 for span in unit.spans] == [0, 0]  # the fused matrices, the bias
    assert unit.num_bytes == 3 * 256 + 256


def test_parameters_of_one_storage_stay_views_of_one_storage() -> None:
    block = QKV()
    unit = whole(block)
    unit.bind(filled(unit))
    block.q.data[-1, -1] = 7  # the last number before k
    assert block.k.data_ptr() - block.q.data_ptr() == 256
    assert block.q.untyped_storage().data_ptr() == block.v.untyped_storage().data_ptr()


def test_a_tied_parameter_is_bound_once_for_all_its_names() -> None:
    net = TiedHead()
    trunk = Unit.build(find_units(net)[0], S, CPU)
    trunk.release()
    assert net.lm_head.weight is net.embed.weight
    assert net.embed.weight.shape == (0,)
    assert len(trunk.bindings) == 1


def test_an_empty_parameter_is_left_alone() -> None:
    block = OddBlock()
    unit = whole(block)
    unit.release()
    assert block.nothing.shape == (0, 8)


def test_a_unit_reads_only_the_bytes_that_its_parameters_use() -> None:
    """A slice of a huge storage does not bring the rest along."""
    module = nn.Module()
    module.register_parameter("part", nn.Parameter(torch.rand(100_000)[50_000:50_010]))
    unit = whole(module)
    assert unit.num_bytes == 256
    part = module.get_parameter("part").clone()
    unit.bind(filled(unit))
    assert torch.equal(module.get_parameter("part"), part)


def test_types_of_several_sizes_in_one_storage_keep_their_alignment() -> None:
    """A quantised block: codes from byte 17 of it, scales of four bytes from byte 20."""
    packed = torch.arange(64, dtype=torch.uint8)
    codes, scales = packed[17:20].view(torch.int8), packed[20:52].view(torch.float32)
    module = nn.Module()
    for name, part in (("codes", codes), ("scales", scales)):
        module.register_parameter(name, nn.Parameter(part, requires_grad=False))
    unit = whole(module)
    unit.bind(filled(unit))
    assert module.get_parameter("codes").tolist() == [17, 18, 19]
    assert torch.equal(module.get_parameter("scales"), scales)
    assert module.get_parameter("scales").data_ptr() % 16 == scales.data_ptr() % 16


def test_binding_elsewhere_follows_the_last_memory() -> None:
    module = nn.Linear(4, 4)
    unit = whole(module)
    first = filled(unit)
    second = first.clone()
    unit.bind(first)
    unit.bind(second)
    first.zero_()
    assert module.weight.abs().sum() > 0
    assert unit.memory is second


# --- views and memory ------------------------------------------------------------------------
def test_views_are_made_once_for_each_place() -> None:
    module = nn.Linear(4, 4)
    unit = whole(module)
    first = filled(unit)
    second = first.clone()
    for memory in (first, second, first, second):
        unit.bind(memory)
        unit.release()
    assert set(unit._views) == {first.data_ptr(), second.data_ptr()}
    made = list(map(id, unit._views[first.data_ptr()]))
    unit.bind(first)
    assert list(map(id, unit._views[first.data_ptr()])) == made


def test_forgotten_views_let_the_memory_die() -> None:
    card = virtual_card()
    unit = whole(nn.Linear(4, 4))
    memory = card.allocate(unit.num_bytes, "net/forward")
    unit.bind(memory)
    unit.release()
    card.release(memory)
    del memory
    assert card.usage().allocated_bytes == unit.num_bytes  # the cached views still hold it
    unit.forget()
    assert card.usage().allocated_bytes == 0


def test_a_permanent_unit_is_never_released() -> None:
    unit = whole(nn.Linear(4, 4), P)
    unit.bind(filled(unit))
    with pytest.raises(AssertionError, match="permanent"):
        unit.release()


# --- changes while suspended -----------------------------------------------------------------
def test_replaced_data_is_written_back_and_in_place_changes_are_there_already() -> None:
    module = nn.Linear(4, 4)
    unit = whole(module)
    host = filled(unit)
    unit.bind(host)
    module.weight.data = torch.full((4, 4), 3.0)
    module.bias.data.fill_(2.0)
    unit.keep_changes(host)
    unit.release()
    unit.forget()
    unit.bind(host)
    assert torch.equal(module.weight, torch.full((4, 4), 3.0))
    assert torch.equal(module.bias, torch.full((4,), 2.0))


def test_data_transposed_in_place_is_written_back_as_it_reads() -> None:
    """Same address, same shape, other strides."""
    module = nn.Linear(4, 4)
    unit = whole(module)
    host = filled(unit)
    unit.bind(host)
    expected = module.weight.detach().clone().t()
    module.weight.data = module.weight.data.t()
    unit.keep_changes(host)
    unit.bind(host)
    assert torch.equal(module.weight, expected)


def test_data_of_another_dtype_or_shape_is_refused_with_words() -> None:
    module = nn.Linear(4, 4)
    unit = whole(module)
    host = filled(unit)
    for other in (torch.zeros(4, 4, dtype=torch.float16), torch.zeros(8, 4)):
        unit.bind(host)
        module.weight.data = other
        with pytest.raises(
            StateError, match=r"changed from torch.float32 \(4, 4\) to .*detach\(\)"
        ):
            unit.keep_changes(host)


def test_weights_are_read_by_name_wherever_they_are() -> None:
    net = FusedViews()
    expected = {name: p.detach().clone() for name, p in net.named_parameters()}
    for found in find_units(net):
        unit = Unit.build(found, S, CPU)
        unit.host = filled(unit)
        for state in (UnitState.LOADED, UnitState.RELEASED):
            if state is UnitState.RELEASED:
                unit.release()
            weights = unit.tensors()
            assert set(weights) == set(found.parameters)
            assert all(torch.equal(weights[name], expected[name]) for name in weights)
