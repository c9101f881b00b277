"""Guarantee: quantised weights stay on the card as a whole, or are refused; never moved by halves.

torchao's int8 weights are wrapper subclasses: ``.data =`` on one changes and raises nothing.
"""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig, quantize_

from offload import (
    Budget,
    Residency,
    ResidencySpec,
    StateError,
    plan_residency,
    survey_component,
)
from offload.assembly import _move_whole
from offload.explanation import explain
from offload.facts import aligned
from offload.plan import Lifetime
from offload.survey import find_units
from offload.unit import Unit
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, plan_for, tokens, virtual_card

WIDTH, HIDDEN = 64, 128
STREAM_ALL = ResidencySpec(components={"net": "none"})  # type: ignore[dict-item]
LINEAR_BYTES = WIDTH * HIDDEN  # one byte a number


def quantised(*blocks: int) -> Net:
    net = make_net(width=WIDTH, hidden=HIDDEN)
    for block in blocks:
        quantize_(net.blocks[block], Int8WeightOnlyConfig())
    return net


def test_these_weights_are_what_the_rule_is_about() -> None:
    weight = quantised(1).blocks[1].up.weight
    assert type(weight) is Int8Tensor
    assert is_traceable_wrapper_subclass(weight)
    before = weight.qdata.data_ptr()
    weight.data = torch.zeros_like(weight.dequantize())
    assert weight.qdata.data_ptr() == before


# --- torchao ---------------------------------------------------------------------------------
def test_quantised_layers_stay_on_the_card_and_the_others_stream() -> None:
    net = quantised(1, 3)
    plain = copy.deepcopy(net)
    layers = survey_component(net, "net").layers
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, spec=STREAM_ALL)
    lifetimes = {unit.name: unit.lifetime for unit in residency.plan["net"].layers}
    pinned = {"blocks.1", "blocks.3"}
    assert lifetimes == {unit.name: P if unit.name in pinned else S for unit in layers}
    for seed in range(3):
        with residency.request() as usage:
            assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
        assert usage.copied_bytes > 0
    residency.detach()
    assert card.ledger() == {}
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@pytest.mark.parametrize("block", [0, 4])
def test_a_wholly_quantised_net_is_all_permanent_and_computes_the_same(block: int) -> None:
    net = quantised(*range(5))
    quantize_(net.side, Int8WeightOnlyConfig())
    plain = copy.deepcopy(net)
    residency = Residency.attach({"net": net}, card=virtual_card(), spec=STREAM_ALL)
    assert {unit.lifetime for unit in residency.plan["net"].layers} == {P}
    assert torch.equal(net(tokens(block)), plain(tokens(block)))
    assert torch.equal(
        net.decode(plain.embed(tokens(block))), plain.decode(net.embed(tokens(block)))
    )
    residency.detach()


def test_the_notice_says_which_layers_stay_and_why(caplog: pytest.LogCaptureFixture) -> None:
    net = quantised(1, 3)
    with caplog.at_level(logging.INFO, "offload"):
        residency = Residency.attach({"net": net}, card=virtual_card(), spec=STREAM_ALL)
    size = sum(unit.num_bytes for unit in survey_component(net, "net").layers if "1" in unit.name)
    said = (
        f"net: blocks.1 and 1 more stay on the card ({2 * size / 1024:.1f} KiB): "
        "blocks.1.up.weight is a Int8Tensor, which only moves as a whole"
    )
    assert said in caplog.messages
    assert said in residency.plan.warnings
    assert f"warning: {said}" in explain(residency.plan)
    residency.detach()


def test_a_plain_net_gets_no_notice() -> None:
    facts = [survey_component(make_net(), "net")]
    budget = Budget(num_bytes=1 << 20, copy_bytes_per_s=1e9)
    assert plan_residency(STREAM_ALL, facts, budget).warnings == ()


def test_a_quantised_weight_counts_what_it_holds() -> None:
    """A byte a number, and 4 bytes of scale and 1 of zero point a row; plain: 4 a number."""
    facts = survey_component(quantised(1), "net")
    plain, int8 = facts.layers[0].num_bytes, facts.layers[1].num_bytes
    up, down = (aligned(LINEAR_BYTES + rows * (4 + 1)) for rows in (HIDDEN, WIDTH))
    assert plain - int8 == 2 * 4 * LINEAR_BYTES - (up + down)


@pytest.mark.parametrize("lifetime", [F, S])
def test_a_plan_that_would_lend_a_quantised_layer_is_refused(lifetime: Lifetime) -> None:
    net = quantised(1)
    expected = net(tokens(1))
    card = virtual_card()
    with pytest.raises(StateError, match=r"lends net\.blocks\.1, but .* is a Int8Tensor"):
        Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [lifetime]))
    assert card.ledger() == {}
    assert torch.equal(net(tokens(1)), expected)


def test_a_layer_quantised_after_the_plan_was_made_is_refused() -> None:
    net = make_net(width=WIDTH, hidden=HIDDEN)
    plan = plan_for({"net": net}, [S])
    quantize_(net.blocks[2], Int8WeightOnlyConfig())
    with pytest.raises(StateError, match=r"lends net\.blocks\.2"):
        Residency.attach({"net": net}, card=virtual_card(), plan=plan)


def test_detach_gives_back_the_same_objects_whole() -> None:
    net = quantised(1)
    before = {name: (id(p), type(p.data)) for name, p in net.named_parameters()}
    weights = copy.deepcopy(net.blocks[1].up.weight)
    residency = Residency.attach({"net": net}, card=virtual_card(), spec=STREAM_ALL)
    net(tokens(1))
    residency.detach()
    assert {name: (id(p), type(p.data)) for name, p in net.named_parameters()} == before
    assert torch.equal(net.blocks[1].up.weight.qdata, weights.qdata)
    assert torch.equal(net.blocks[1].up.weight.scale, weights.scale)
    assert net.state_dict().keys() == make_net(width=WIDTH, hidden=HIDDEN).state_dict().keys()


def test_a_quantised_weight_moves_as_a_whole_and_stays_the_same_object() -> None:
    """The simulated card is the host, so nothing moves there: here to another kind of device."""
    found = next(unit for unit in find_units(quantised(1)) if unit.name == "blocks.1")
    unit = Unit.build(found, P, torch.device("meta"))
    weight = unit.parameters["blocks.1.up.weight"]
    _move_whole(unit, torch.device("meta"))
    assert unit.parameters["blocks.1.up.weight"] is weight
    assert type(weight) is Int8Tensor
    assert weight.device.type == weight.qdata.device.type == weight.scale.device.type == "meta"
    assert not weight.requires_grad


def test_it_is_listed_with_its_name_while_it_is_managed(attach: Attach) -> None:
    net = quantised(1)
    residency = Residency.attach({"net": net}, card=virtual_card(), spec=STREAM_ALL)
    listed = dict(residency.iter_weights())
    assert listed.keys() == {f"net.{name}" for name, _ in net.named_parameters()}
    assert type(listed["net.blocks.1.up.weight"]) is Int8Tensor
    residency.detach()


# --- others' subclasses ----------------------------------------------------------------------
class Packed(nn.Parameter):
    """As GGUF's: bytes and the name of their format, unpacked by the layer."""

    kind: str

    @staticmethod
    def of(weight: torch.Tensor) -> "Packed":
        packed = Packed(weight.detach().clone().view(torch.uint8), requires_grad=False)
        packed.kind = "raw"
        return packed


class PackedLinear(nn.Module):
    """Unpacks its weight when it computes."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = Packed.of(base.weight), base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight.kind == "raw"
        return nn.functional.linear(x, self.weight.data.view(torch.float32), self.bias)


@pytest.mark.parametrize("lifetimes", [[P], [F], [S], [P, F, S]], ids=str)
def test_bytes_with_a_format_move_like_any_other(lifetimes: Any, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    for block in net.blocks:
        block.up = PackedLinear(block.up)
    weight = net.blocks[1].up.weight
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    for seed in range(2):
        assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
    assert net.blocks[1].up.weight is weight
    assert type(weight) is Packed
    assert residency.plan.warnings == ()


class State:
    """As bitsandbytes keeps it: scales beside the numbers, in an object of their own."""

    def __init__(self) -> None:
        self.absmax = torch.ones(4)


def with_state(weight: nn.Parameter) -> nn.Parameter:
    packed = Packed.of(weight)
    packed.quant_state = State()
    return packed


def with_scale(weight: nn.Parameter) -> nn.Parameter:
    packed = Packed.of(weight)
    packed.scale = torch.ones(4)
    return packed


class Hollow(torch.Tensor):
    """A wrapper that does not say what it is made of."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Hollow":
        outer = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        outer.inner = inner
        return outer

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return Hollow(args[0].inner)
        plain = [a.inner if isinstance(a, Hollow) else a for a in args]
        return func(*plain, **(kwargs or {}))


def hollow(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(Hollow(weight.detach()), requires_grad=False)


@pytest.mark.parametrize(
    ("replace", "words"),
    [
        (with_state, r"is a Packed, which keeps tensors beside its data \(quant_state\)"),
        (with_scale, r"is a Packed, which keeps tensors beside its data \(scale\)"),
        (hollow, "is a Hollow, which has no memory of its own"),
        (lambda weight: nn.UninitializedParameter(), "is a .*, which has no memory yet"),
    ],
    ids=["state", "scale", "hollow", "uninitialised"],
)
def test_what_would_move_by_halves_is_refused_before_anything_moves(
    replace: Callable[[nn.Parameter], nn.Parameter], words: str
) -> None:
    net = make_net()
    others = {name: p.data_ptr() for name, p in net.named_parameters() if "up.weight" not in name}
    net.blocks[1].up.weight = replace(net.blocks[1].up.weight)
    card = virtual_card()
    with pytest.raises(StateError, match=rf"net\.blocks\.1\.up\.weight {words}"):
        Residency.attach({"net": net}, card=card)
    assert card.ledger() == {}
    assert (
        others.items()
        <= {n: p.data_ptr() for n, p in net.named_parameters() if n in others}.items()
    )
