"""Guarantee: another plan keeps what others did to the weights, and where these came from."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from offload import Residency
from tests.offload.adapters import ADDED_BYTES, add, remove
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.other_plans import PLANS, other_plan

before_ = pytest.mark.parametrize("before", PLANS.values(), ids=PLANS.keys())
after_ = pytest.mark.parametrize("after", PLANS.values(), ids=PLANS.keys())


def same_output(net: Net, plain: Net, seed: int = 1) -> bool:
    return torch.equal(net(tokens(seed), picture(seed)), plain(tokens(seed), picture(seed)))


def store_bytes(residency: Residency) -> int:
    return residency.snapshot().host.store_bytes


@before_
@after_
def test_an_adapter_and_changed_weights_come_along(before, after, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    former = plan_for({"net": net}, before)
    plan = other_plan(former, after)
    card = virtual_card()
    residency = attach({"net": net}, former, card)
    for module in (net, plain):
        add(module)
    assert same_output(net, plain)
    where = net.blocks[1].up.down.data_ptr()
    doubled = plain.get_parameter("blocks.0.up.weight") * 2
    residency.load_weights([("net.blocks.0.up.weight", doubled)])
    plain.blocks[0].up.weight.copy_(doubled)
    with residency.suspended():
        net.blocks[2].down.weight.data = net.blocks[2].down.weight.data * 3
    plain.blocks[2].down.weight.mul_(3)
    residency.apply(plan)
    assert same_output(net, plain)
    assert net.blocks[1].up.down.data_ptr() == where
    assert card.usage().allocated_bytes == plan.standing_bytes + ADDED_BYTES
    for module in (net, plain):
        remove(module)
    assert same_output(net, plain)
    assert card.usage().allocated_bytes == plan.standing_bytes


def test_data_that_somebody_put_in_a_weights_place_comes_along(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    for module in (net, plain):
        module.blocks[0].up.weight.data = module.blocks[0].up.weight.data * 2
    residency.apply(other_plan(former, [F, S]))
    assert same_output(net, plain)


def test_a_buffer_keeps_what_it_counted_and_where_it_is(attach: Attach) -> None:
    net = make_net()
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    where = net.calls.data_ptr()
    for lifetimes in ([S], [P], [F]):
        net(tokens(1))
        residency.apply(other_plan(former, lifetimes))
    assert (net.calls.item(), net.calls.data_ptr()) == (3, where)


@pytest.mark.parametrize("changed", [False, True])
def test_sleep_after_it_drops_what_a_file_holds(
    changed: bool, attach: Attach, tmp_path: Path
) -> None:
    """Whatever plan was in force at load; what was changed while it was lent is saved."""
    net = make_net()
    plain = copy.deepcopy(net)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    net.load_state_dict(load_file(tmp_path / "net.safetensors"), assign=True)
    net.requires_grad_(False)
    former = plan_for({"net": net}, [S])
    plan = other_plan(former, [P])
    residency = attach({"net": net}, former)
    if changed:
        with residency.suspended():
            net.blocks[0].up.weight.data.mul_(2)
        plain.blocks[0].up.weight.data.mul_(2)
    residency.apply(plan)
    residency.sleep()
    saved = plan["net"].buffer_bytes + changed * plan["net"].layers[0].num_bytes
    assert store_bytes(residency) == saved
    residency.wake()
    assert same_output(net, plain)


def test_weights_of_a_file_that_is_gone_are_lent_from_what_the_card_holds(
    attach: Attach, tmp_path: Path
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    net.load_state_dict(load_file(tmp_path / "net.safetensors"), assign=True)
    net.requires_grad_(False)
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    (tmp_path / "net.safetensors").unlink()
    residency.apply(other_plan(former, [F, S]))
    assert same_output(net, plain)
