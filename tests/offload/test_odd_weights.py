"""Guarantee: tied, shared, fused, strided, empty and subclassed weights stay what they are."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from offload import Residency, ResidencySpec, survey_component
from offload.survey import find_units
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, picture, plan_for, virtual_card
from tests.offload.odd_nets import ODD, WIDTH, FusedViews, TiedHead, make_odd

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}


@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("name", ODD)
def test_odd_module_computes_the_same_bits(name: str, lifetimes, attach: Attach) -> None:
    net = make_odd(name)
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    for seed in range(3):
        with residency.request():
            managed = [net(picture(seed)), net(picture(seed, count=3))]
        expected = [plain(picture(seed)), plain(picture(seed, count=3))]
        assert all(torch.equal(a, b) for a, b in zip(managed, expected, strict=True))


def layout(module: nn.Module) -> list[tuple[object, ...]]:
    """What code can see of a parameter, by every name it has."""
    return [
        (name, id(p), p.dtype, p.shape, p.stride(), p.requires_grad, type(p))
        for name, p in module.named_parameters(remove_duplicate=False)
    ]


@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("name", ODD)
def test_odd_module_comes_back_with_objects_strides_and_bytes(name: str, lifetimes) -> None:
    net = make_odd(name)
    before, weights = layout(net), copy.deepcopy(net).state_dict()
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
    )
    net(picture(1))
    residency.detach()
    assert layout(net) == before
    assert same_bits(net.state_dict(), weights)


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(bits(a[name]) == bits(b[name]) for name in a)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("name", ODD)
def test_weights_are_listed_once_each_wherever_they_are(
    name: str, lifetimes, attach: Attach
) -> None:
    net = make_odd(name)
    expected = {f"net.{path}": bits(p) for path, p in net.named_parameters()}
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    listed = [(path, bits(tensor)) for path, tensor in residency.iter_weights()]
    assert len(listed) == len(expected)
    assert dict(listed) == expected


@pytest.mark.parametrize("name", ODD)
def test_surveyed_bytes_are_what_the_card_holds(name: str) -> None:
    net = make_odd(name)
    facts = survey_component(net, "net")
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P]))
    assert card.usage().allocated_bytes == facts.weight_bytes + facts.buffer_bytes
    residency.detach()


def test_tied_embedding_and_head_read_one_memory_at_every_moment(attach: Attach) -> None:
    net = TiedHead().requires_grad_(False)
    attach({"net": net}, plan_for({"net": net}, [S]))
    seen: list[bool] = []
    for module in (net.embed, net.lm_head):
        module.register_forward_pre_hook(
            lambda *_: seen.append(
                net.embed.weight.data_ptr() == net.lm_head.weight.data_ptr() != 0
            )
        )
    net(picture(1))
    assert seen == [True, True]
    assert net.lm_head.weight is net.embed.weight


def test_fused_parts_of_a_layer_lie_side_by_side_on_the_card(attach: Attach) -> None:
    net = FusedViews().requires_grad_(False)
    attach({"net": net}, plan_for({"net": net}, [S]))
    block = net.blocks[2]
    apart: list[tuple[int, int]] = []
    block.probe.register_forward_hook(
        lambda *_: apart.append(
            (block.k.data_ptr() - block.q.data_ptr(), block.v.data_ptr() - block.k.data_ptr())
        )
    )
    net(picture(1))
    assert apart == [(8 * 8 * 4, 8 * 8 * 4)]  # a matrix of 8 x 8 numbers of 4 bytes each


# --- wrapper subclasses ----------------------------------------------------------------------
class Doubled(torch.Tensor):
    """A wrapper subclass as quantisers make them: an outer tensor without memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Doubled":
        outer = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=False
        )
        outer.inner = inner
        return outer

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> "Doubled":
        return Doubled(inner["inner"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [a.inner * 2 if isinstance(a, Doubled) else a for a in args]
        if func in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            return Doubled(func(args[0].inner, *args[1:], **(kwargs or {})))
        return func(*plain, **(kwargs or {}))


class Wrapped(nn.Module):
    """One layer has a weight that is a wrapper subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        weight = Doubled(self.blocks[1].weight.detach().clone())
        self.blocks[1].weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_wrapper_subclass_keeps_its_layer_on_the_card_and_computes_the_same(attach: Attach) -> None:
    net = Wrapped().requires_grad_(False)
    expected = net(picture(1))
    weight = net.blocks[1].weight
    card = virtual_card(16 << 10)
    residency = Residency.attach(
        {"net": net},
        card=card,
        spec=ResidencySpec(components={"net": "none"}),  # type: ignore[dict-item]
    )
    lifetimes = {unit.name: unit.lifetime for unit in residency.plan["net"].layers}
    assert lifetimes == {"blocks.0": S, "blocks.1": P, "blocks.2": S}
    assert torch.equal(net(picture(1)), expected)
    assert net.blocks[1].weight is weight
    assert isinstance(weight, Doubled)
    residency.detach()
    assert torch.equal(net(picture(1)), expected)


def test_survey_says_why_a_wrapped_layer_cannot_be_lent() -> None:
    _, first, second, _ = find_units(Wrapped())
    assert first.pinned_to_card == ""
    assert "blocks.1.weight is a Doubled" in second.pinned_to_card
