"""Guarantee: an adapter added within suspended() or unannounced works, is counted and can leave."""

import copy

import pytest
import torch

from offload import Residency, SimulatedCard
from tests.offload.adapters import ADDED_BYTES, add, remove
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, plan_for, tight, tokens, virtual_card

any_plan = pytest.mark.parametrize("lifetimes", [[P], [F], [S], [P, F, S]], ids=str)


@any_plan
@pytest.mark.parametrize("announced", [True, False])
def test_an_adapter_draws_as_in_the_plain_module_and_leaves_without_a_trace(
    lifetimes, announced: bool, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    plan = plan_for({"net": net}, lifetimes)
    residency = attach({"net": net}, plan, card)
    before = net(tokens(1))
    host = residency.snapshot().host.store_bytes

    def change(how) -> None:
        if announced:
            with residency.suspended():
                how(net)
        else:
            how(net)
        how(plain)

    change(add)
    for seed in range(3):
        assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
    assert not torch.equal(net(tokens(1)), before)
    assert card.usage().allocated_bytes == plan.standing_bytes + ADDED_BYTES
    assert residency.snapshot().host.store_bytes == host  # no second host copy
    change(remove)
    assert torch.equal(net(tokens(1)), before)
    assert card.usage().allocated_bytes == plan.standing_bytes


@any_plan
def test_weights_are_listed_once_by_their_present_names(lifetimes, attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    add(net)
    net(tokens(1))
    names = [name for name, _ in residency.iter_weights()]
    assert sorted(names) == sorted(f"net.{name}" for name, _ in net.named_parameters())
    assert "net.blocks.1.up.base_layer.weight" in names
    assert "net.blocks.1.up.down" in names


@any_plan
def test_detach_gives_back_a_module_with_its_adapter(lifetimes) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    add(net)
    add(plain)
    net(tokens(1))
    residency.detach()
    assert card.ledger() == {}
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_an_adapter_that_does_not_fit_says_so_and_the_next_request_is_right() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    plan = tight(plan_for({"net": net}, [P]))
    card = SimulatedCard(memory_bytes=plan.peak_bytes, bytes_per_s=1e9, clock="virtual")
    residency = Residency.attach({"net": net}, card=card, plan=plan)
    add(net)
    with pytest.raises(torch.OutOfMemoryError, match="added"):
        net(tokens(1))
    remove(net)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    residency.detach()


def test_a_fused_adapter_changes_the_host_copy_and_is_kept(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [F, S, P]))
    delta = torch.rand(16, 8)
    with residency.suspended():
        for block in net.blocks:
            block.up.weight.data = block.up.weight.data + delta
    for block in plain.blocks:
        block.up.weight.data = block.up.weight.data + delta
    for seed in range(2):
        assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
