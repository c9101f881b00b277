"""Guarantee: within ``suspended()`` modules are plain and complete; what was changed is kept."""

import copy
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file, save_file
from torch import nn

from offload import Residency, StateError
from offload.guards import OWNED
from tests.offload.adapters import add
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, plan_for, tokens, virtual_card

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return list(ours) == list(theirs) and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def instance_dicts(root: nn.Module) -> list[set[str]]:
    """What stands in each module's own dict, but for the mark that says whose it is."""
    return [set(module.__dict__) - {OWNED} for module in root.modules()]


@any_plan
def test_modules_are_plain_and_complete_inside(lifetimes, attach: Attach) -> None:
    net = make_net()
    plain, instance = copy.deepcopy(net), instance_dicts(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    net(tokens(1)), plain(tokens(1))
    with residency.suspended():
        assert instance_dicts(net) == instance
        assert same_weights(net, plain)
        assert torch.equal(net(tokens(2)), plain(tokens(2)))  # a plain call, without the engine
        copied = copy.deepcopy(net)
        assert torch.equal(copied(tokens(3)), copy.deepcopy(plain)(tokens(3)))
    assert torch.equal(net(tokens(4)), plain(tokens(4)))


@any_plan
def test_nothing_but_permanent_units_is_on_the_card_inside(lifetimes) -> None:
    net = make_net()
    plan, card = plan_for({"net": net}, lifetimes), virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan)
    placed = {p: p.data_ptr() for p in net.parameters() if p.numel()}
    net(tokens(1))
    with residency.suspended():
        assert card.usage().allocated_bytes == plan.standing_bytes
    assert {p: p.data_ptr() for p in net.parameters() if p.numel()} == placed
    residency.detach()
    assert card.usage().allocated_bytes == 0


@any_plan
def test_a_model_saved_inside_loads_as_it_was(lifetimes, tmp_path: Path, attach: Attach) -> None:
    """Parameters of a unit share one storage: a file must hold each alone."""
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    with residency.suspended():
        save_file(net.state_dict(), tmp_path / "net.safetensors")
        torch.save(net.blocks[1].up.weight, tmp_path / "weight.pt")
    loaded = load_file(tmp_path / "net.safetensors")
    assert all(torch.equal(loaded[name], weight) for name, weight in plain.state_dict().items())


CHANGES = {
    "in place": lambda p: p.data.mul_(2),
    "new data": lambda p: setattr(p, "data", p.data * 2),
    "new data of other strides": lambda p: setattr(p, "data", (p.data * 2).t().contiguous().t()),
}


@any_plan
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_weights_are_kept_after_resume_and_after_detach(change, lifetimes) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    for parameter in plain.parameters():
        parameter.data.mul_(2)
    card = virtual_card()
    plan = plan_for({"net": net}, lifetimes)
    residency = Residency.attach({"net": net}, card=card, plan=plan)
    placed = {p: p.data_ptr() for p in net.parameters() if p.numel()}
    net(tokens(1)), plain(tokens(1))
    with residency.suspended():
        for parameter in net.parameters():
            change(parameter)
    assert {p: p.data_ptr() for p in net.parameters() if p.numel()} == placed
    for seed in range(2):
        with residency.request():
            assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
    assert card.usage().allocated_bytes == plan.standing_bytes
    residency.detach()
    assert same_weights(net, plain)


@any_plan
def test_a_loaded_state_dict_is_kept(lifetimes, attach: Attach) -> None:
    net, other = make_net(1), make_net(2)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    with residency.suspended():
        net.load_state_dict(other.state_dict())
    assert torch.equal(net(tokens(1)), other(tokens(1)))


def test_a_wrapper_put_on_inside_stays_in_use(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    calls: list[int] = []
    with residency.suspended():
        for module in (net, plain):
            module.blocks[1].register_forward_hook(lambda module, args, out: out * 3)
        net.blocks[2].register_forward_pre_hook(lambda *_: calls.append(1))
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert calls == [1]


# --- what may not happen inside --------------------------------------------------------------
def replace_weight(net: Net) -> None:
    net.blocks[1].up.weight = nn.Parameter(torch.rand(16, 8))


def assign_weights(net: Net) -> None:
    net.load_state_dict(make_net(3).state_dict(), assign=True)


def remove_layer(net: Net) -> None:
    del net.blocks[4]


@any_plan
@pytest.mark.parametrize("change", [replace_weight, assign_weights, remove_layer])
def test_lost_parameters_are_refused_and_the_module_is_whole_and_plain(change, lifetimes) -> None:
    net = make_net()
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    suspension = residency.suspended()
    suspension.__enter__()
    change(net)
    expected = copy.deepcopy(net)
    with pytest.raises(StateError, match=r"net were replaced or removed.*detach\(\)"):
        suspension.__exit__(None, None, None)
    assert same_weights(net, expected)
    assert torch.equal(net(tokens(1)), expected(tokens(1)))
    assert card.ledger() == {}
    again = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    assert torch.equal(net(tokens(2)), expected(tokens(2)))
    again.detach()


@any_plan
def test_another_dtype_is_refused_and_every_module_is_whole(lifetimes) -> None:
    modules = {"a": make_net(1), "b": make_net(2)}
    plain = copy.deepcopy(modules)
    card = virtual_card()
    residency = Residency.attach(modules, card=card, plan=plan_for(modules, lifetimes))
    with (
        pytest.raises(StateError, match=r"changed from torch.float32 .* to torch.float16"),
        residency.suspended(),
    ):
        modules["b"].half()
    assert card.ledger() == {}
    assert torch.equal(modules["a"](tokens(1)), plain["a"](tokens(1)))
    assert all(p.numel() for p in modules["b"].parameters())


def test_another_offloader_is_refused_at_the_end(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    with pytest.raises(StateError, match="already has accelerate's hook"), residency.suspended():
        cpu_offload(net, execution_device=torch.device("cpu"))


def test_requests_detach_and_suspending_again_are_refused_inside(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    with residency.suspended():
        with pytest.raises(StateError, match=r"cannot begin a request within suspended\(\)"):
            residency.request().__enter__()
        with pytest.raises(StateError, match=r"cannot detach within suspended\(\)"):
            residency.detach()
        with pytest.raises(StateError, match=r"cannot suspend within suspended\(\)"):
            residency.suspended().__enter__()
    net(tokens(1))


def test_suspending_within_a_request_is_refused_and_the_request_goes_on(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    with residency.request():
        with pytest.raises(StateError, match="cannot suspend while a request is running"):
            residency.suspended().__enter__()
        assert torch.equal(net(tokens(1)), plain(tokens(1)))


def change_and_fail(net: Net) -> None:
    net.shift.data.add_(1)
    raise KeyError


def test_an_error_inside_takes_the_modules_back_with_what_was_changed(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [F, S]))
    with pytest.raises(KeyError), residency.suspended():
        change_and_fail(net)
    plain.shift.data.add_(1)
    with residency.request() as usage:
        assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert usage.components["net"].copied_bytes > 0  # managed again


@any_plan
def test_an_adapter_lies_beside_the_weight_that_it_may_be_merged_into(
    lifetimes, attach: Attach
) -> None:
    """On a card two devices would meet otherwise; its own changes are kept."""
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    for module in (net, plain):
        for block in range(3):
            add(module, block)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    places = {p: p.data_ptr() for block in net.blocks[:3] for p in adapter_of(block)}
    with residency.suspended():
        for block in net.blocks[:3]:
            on_card = on_the_card(residency, block.up.base_layer.weight)
            assert [on_the_card(residency, p) for p in adapter_of(block)] == [on_card] * 2
        net.blocks[1].up.down.mul_(2)
    plain.blocks[1].up.down.mul_(2)
    assert {p: p.data_ptr() for p in places} == places
    assert torch.equal(net(tokens(2)), plain(tokens(2)))


def adapter_of(block: nn.Module) -> list[nn.Parameter]:
    return [block.get_parameter("up.down"), block.get_parameter("up.up")]


def on_the_card(residency: Residency, weight: torch.Tensor) -> bool:
    """Whether it lies in memory that the card handed out."""
    held = residency._assemblies["net"].permanent.values()
    starts = {memory.untyped_storage().data_ptr() for memory in held}
    return weight.untyped_storage().data_ptr() in starts
