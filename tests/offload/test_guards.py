"""Guarantee: what would silently break a managed module is refused, with what to do instead."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from diffusers.hooks import apply_group_offloading, apply_layerwise_casting
from torch import nn

from offload import Residency, SimulatedCard, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())


def everything(module: nn.Module) -> list[set[str]]:
    """Instance attributes and state_dict hooks of every module."""
    return [{*m.__dict__, *map(str, m._state_dict_pre_hooks)} for m in module.modules()]


# --- moving and converting -------------------------------------------------------------------
@any_plan
@pytest.mark.parametrize(
    "call",
    [
        lambda net: net.to("cpu"),
        lambda net: net.to(torch.float32),
        lambda net: net.to(torch.device("cpu"), torch.float32),
        lambda net: net.float(),
        lambda net: net.cpu(),
        lambda net: net.blocks[1].to("cpu"),
        lambda net: net.blocks[1].up.float(),
        lambda net: net.eval(),
        lambda net: net.requires_grad_(False),
    ],
)
def test_a_call_that_changes_nothing_is_a_no_op(call, lifetimes, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    attach({"net": net}, plan_for({"net": net}, lifetimes))
    placed = {name: p.data_ptr() for name, p in net.named_parameters()}
    assert isinstance(call(net), nn.Module)
    assert {name: p.data_ptr() for name, p in net.named_parameters()} == placed
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@any_plan
@pytest.mark.parametrize(
    "call",
    [
        lambda net: net.half(),
        lambda net: net.to(torch.bfloat16),
        lambda net: net.double(),
        lambda net: net.to("meta"),
        lambda net: net.to_empty(device="meta"),
        lambda net: net.blocks[1].half(),
        lambda net: net.blocks[1].up.to(torch.float16),
        lambda net: net.final.half(),
    ],
)
def test_a_call_that_would_convert_or_move_is_refused_and_changes_nothing(
    call, lifetimes, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    attach({"net": net}, plan_for({"net": net}, lifetimes))
    with pytest.raises(StateError, match=r"net is managed and stays .* residency\.suspended\(\)"):
        call(net)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_cuda_is_refused_by_torch_or_by_us_and_changes_nothing(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    attach({"net": net}, plan_for({"net": net}, [S]))
    with pytest.raises((StateError, RuntimeError, AssertionError)):
        net.cuda()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


# --- reading and copying ---------------------------------------------------------------------
@pytest.mark.parametrize("lifetimes", [[F], [S], [P, F, S]])
@pytest.mark.parametrize("part", ["", "blocks", "blocks.1", "blocks.1.up", "final"])
def test_a_state_dict_of_placeholders_is_refused(lifetimes, part: str, attach: Attach) -> None:
    net = make_net()
    attach({"net": net}, plan_for({"net": net}, lifetimes))
    with pytest.raises(
        StateError, match=r"state_dict\(\) and save_pretrained\(\) would write empty"
    ):
        net.get_submodule(part).state_dict()


def test_a_wholly_permanent_component_may_be_saved(attach: Attach) -> None:
    net = make_net()
    expected = copy.deepcopy(net).state_dict()
    attach({"net": net}, plan_for({"net": net}, [P]))
    saved = net.state_dict()
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


@any_plan
@pytest.mark.parametrize("part", ["", "blocks.1", "final"])
def test_a_copy_is_refused(lifetimes, part: str, attach: Attach) -> None:
    """A copy's doors would lead into the original."""
    net = make_net()
    attach({"net": net}, plan_for({"net": net}, lifetimes))
    with pytest.raises(StateError, match=r"copy it within residency\.suspended\(\)"):
        copy.deepcopy(net.get_submodule(part))


@any_plan
def test_guards_are_gone_after_detach_and_weights_are_equal_bit_for_bit(lifetimes) -> None:
    net = make_net()
    expected, before = copy.deepcopy(net).state_dict(), everything(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
    )
    residency.detach()
    assert everything(net) == before
    saved = net.state_dict()
    assert list(saved) == list(expected)
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
    copied = copy.deepcopy(net)
    assert torch.equal(copied(tokens(1)), net(tokens(1)))
    assert {p.dtype for p in net.half().parameters()} == {torch.float16}


# --- modes that keep or replay what a layer read ---------------------------------------------
@pytest.mark.parametrize("lifetimes", [[F], [S], [P, F, S]])
@pytest.mark.parametrize(
    "call", [lambda net: net(tokens(1)), lambda net: net.blocks[2](picture(1))]
)
def test_gradients_into_weights_that_come_and_go_are_refused(
    call, lifetimes, attach: Attach
) -> None:
    net = make_net().requires_grad_(True)
    card = virtual_card()
    plan = plan_for({"net": net}, lifetimes)
    attach({"net": net}, plan, card)
    with torch.enable_grad(), pytest.raises(StateError, match=r"call it under torch\.no_grad\(\)"):
        call(net)
    assert card.usage().allocated_bytes == plan.standing_bytes
    call(net)  # without gradients


def test_gradients_into_a_wholly_permanent_component_are_its_own_business(attach: Attach) -> None:
    net = make_net().requires_grad_(True)
    attach({"net": net}, plan_for({"net": net}, [P]))
    with torch.enable_grad():
        net(tokens(1)).sum().backward()
    assert net.blocks[0].up.weight.grad is not None


def test_gradients_that_no_weight_asks_for_are_no_reason_to_refuse(attach: Attach) -> None:
    net = make_net()
    attach({"net": net}, plan_for({"net": net}, [S]))
    with torch.enable_grad():
        net(tokens(1))


class CapturingCard(SimulatedCard):
    """Says that a graph is being captured while ``capturing`` is set."""

    capturing = False

    def is_capturing(self) -> bool:
        return self.capturing


@any_plan
def test_a_graph_is_captured_only_of_a_wholly_permanent_component(
    lifetimes, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = CapturingCard(memory_bytes=1 << 20, bytes_per_s=1e9, clock="virtual")
    attach({"net": net}, plan_for({"net": net}, lifetimes), card)
    card.capturing = True
    if lifetimes == [P]:
        net(tokens(1))
    else:
        with pytest.raises(StateError, match="while a graph is captured"):
            net(tokens(1))
    card.capturing = False
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


# --- owners ----------------------------------------------------------------------------------
def refused(modules: dict[str, nn.Module], match: str) -> None:
    before = [everything(module) for module in modules.values()]
    card = virtual_card()
    with pytest.raises(StateError, match=match):
        Residency.attach(modules, card=card)
    assert [everything(module) for module in modules.values()] == before
    assert card.ledger() == {}


def test_attaching_twice_is_refused_and_the_first_goes_on(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    attach({"net": net}, plan_for({"net": net}, [S]))
    refused({"other": net}, "other is already attached to a residency; detach")
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_a_part_or_a_parent_of_an_attached_module_is_refused(attach: Attach) -> None:
    net = make_net()
    attach({"net": net}, plan_for({"net": net}, [S]))
    refused({"part": net.blocks}, "part is already attached")
    refused({"parent": nn.Sequential(nn.Linear(2, 2), net)}, "parent is already attached")


def test_attaching_again_after_detach_works() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    for lifetimes in ([S], [P, F]):
        residency = Residency.attach(
            {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
        )
        assert torch.equal(net(tokens(1)), plain(tokens(1)))
        residency.detach()


def test_one_module_under_two_names_is_refused() -> None:
    net = make_net()
    refused({"unet": net, "unet_2": net}, "unet_2 and unet are the same module; attach it once")


def test_a_weight_of_two_components_is_refused_by_name() -> None:
    first, second = make_net(1), make_net(2)
    second.embed.weight = first.embed.weight
    refused({"a": first, "b": second}, r"b\.embed\.weight also belongs to a")


# --- other offloaders ------------------------------------------------------------------------
def test_accelerates_hook_is_refused() -> None:
    net = make_net()
    cpu_offload(net, execution_device=torch.device("cpu"))
    refused(
        {"net": net}, "already has accelerate's hook: two offloaders cannot move the same weights"
    )


@pytest.mark.parametrize("level", ["block_level", "leaf_level"])
def test_diffusers_group_offloading_is_refused(level: str) -> None:
    net = make_net()
    apply_group_offloading(
        net,
        onload_device=torch.device("cpu"),
        offload_device=torch.device("cpu"),
        offload_type=level,
        num_blocks_per_group=1 if level == "block_level" else None,
    )
    refused({"net": net}, r"net\S* already has group_offloading")


def test_diffusers_layerwise_casting_is_refused() -> None:
    net = make_net()
    apply_layerwise_casting(net, storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    refused({"net": net}, r"net\S* already has layerwise_casting")
