"""Guarantee: however a request ends, only permanent units stay and the next request is right."""

import asyncio
import copy

import pytest
import torch

from offload import Residency, SimulatedCard, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import (
    F,
    Net,
    P,
    S,
    make_net,
    picture,
    plan_for,
    tight,
    tokens,
    virtual_card,
)

ENDINGS = [
    ValueError,
    KeyboardInterrupt,
    asyncio.CancelledError,
    SystemExit,
    torch.OutOfMemoryError,
]


def fail_at(net: Net, layer: int, error: type[BaseException]) -> torch.utils.hooks.RemovableHandle:
    def fail(*_: object) -> None:
        raise error("on purpose")

    return net.blocks[layer].down.register_forward_pre_hook(fail)


@pytest.mark.parametrize("error", ENDINGS)
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_any_exception_at_any_layer(error: type[BaseException], layer: int, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    plan = plan_for({"net": net}, [P, F, S])
    residency = attach({"net": net}, plan, card)
    handle = fail_at(net, layer, error)
    with pytest.raises(error), residency.request():
        net(tokens(1))
    handle.remove()
    assert card.usage().allocated_bytes == plan.standing_bytes
    assert card.num_copies_in_flight == 0
    plain.calls += 1  # the failed call counted itself before it failed
    with residency.request():
        assert torch.equal(net(tokens(2)), plain(tokens(2)))
    assert net.calls.item() == plain.calls.item()


def test_an_error_that_the_caller_catches_inside_a_request(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    handle = fail_at(net, 1, ValueError)
    with residency.request():
        with pytest.raises(ValueError, match="on purpose"):
            net(tokens(1))
        handle.remove()
        assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_a_failed_pass_teaches_nothing(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F]))
    handle = fail_at(net, 1, ValueError)
    with pytest.raises(ValueError, match="on purpose"):
        net(tokens(1))
    handle.remove()
    with residency.request() as usage:
        net(tokens(1))
    assert usage.components["net"].on_the_spot == 0  # all were expected, not only two


@pytest.mark.parametrize("allocations", [0, 1])
def test_out_of_memory_at_the_start_of_a_run(allocations: int, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    plan = plan_for({"net": net}, [F, S])
    attach({"net": net}, plan, card)
    card.fail_allocation_after(allocations)
    with pytest.raises(torch.OutOfMemoryError):
        net(tokens(1))
    assert card.usage().allocated_bytes == plan.standing_bytes
    assert torch.equal(net(tokens(2)), plain(tokens(2)))


@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_failed_copy_is_raised_by_its_waiter_and_nothing_hangs(
    after: int, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    plan = plan_for({"net": net}, [F, S])
    attach({"net": net}, plan, card)
    card.fail_copy(OSError("the link is down"), after)
    with pytest.raises(OSError, match="the link is down"):
        net(tokens(1), picture(1))
    assert card.usage().allocated_bytes == plan.standing_bytes
    plain.calls += 1
    assert torch.equal(net(tokens(2)), plain(tokens(2)))


@pytest.mark.parametrize("allocations", [0, 1, 4])
def test_a_failed_attach_leaves_the_modules_as_they_were(allocations: int) -> None:
    net = make_net()
    before = copy.deepcopy(net.state_dict())
    flat = dict(net.__dict__)
    card = virtual_card()
    card.fail_allocation_after(allocations)
    plan = plan_for({"net": net}, [P, P, F])
    with pytest.raises(torch.OutOfMemoryError):
        Residency.attach({"net": net}, card=card, plan=plan)
    assert card.usage().allocated_bytes == 0
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert net.__dict__.keys() == flat.keys()
    Residency.attach({"net": net}, card=virtual_card(), plan=plan).detach()


def test_two_requests_at_once_are_refused(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    with residency.request():
        with pytest.raises(StateError, match="a card runs one at a time"), residency.request():
            pass
        with pytest.raises(StateError, match="request is running"):
            residency.detach()
        net(tokens(1))


def test_gradients_through_lent_weights_are_refused(attach: Attach) -> None:
    net = make_net().requires_grad_(True)
    attach({"net": net}, plan_for({"net": net}, [S]))
    with torch.enable_grad(), pytest.raises(StateError, match="no_grad"):
        net(tokens(1))


def test_a_plan_with_not_a_byte_to_spare_runs() -> None:
    net = make_net()
    plan = tight(plan_for({"net": net}, [S]))
    card = SimulatedCard(memory_bytes=plan.peak_bytes, bytes_per_s=1e9, clock="virtual")
    residency = Residency.attach({"net": net}, card=card, plan=plan)
    for seed in range(3):
        with residency.request() as usage:
            net(tokens(seed), picture(seed))
    assert usage.peak_bytes == plan.peak_bytes
    residency.detach()


def test_a_plan_of_another_module_is_refused_and_nothing_is_left() -> None:
    net = make_net(depth=5)
    card = virtual_card()
    with pytest.raises(StateError, match="the plan of net has 9 units and the module 8"):
        Residency.attach({"net": net}, card=card, plan=plan_for({"net": make_net(depth=6)}, [P]))
    assert card.ledger() == {}
    Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P])).detach()


def test_what_is_set_aside_is_no_budget() -> None:
    card = virtual_card(1 << 20)
    before = card.facts().reserve_bytes
    card.set_aside_bytes += 1 << 10
    assert card.facts().reserve_bytes == before + (1 << 10)
