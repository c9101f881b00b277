"""Guarantee: after out of memory half of what is lent is given up; the output is the same."""

import copy

import pytest
import torch

from offload import Lifetime, Residency, StateError
from offload.demotion import halved
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card


@pytest.mark.parametrize(("count", "kept"), [(8, 4), (7, 3), (5, 2)])
def test_half_of_the_forward_layers_go_and_the_earliest_stay(count: int, kept: int) -> None:
    net = make_net(depth=count, side=0)
    plan = plan_for({"net": net}, [F])
    smaller = halved(plan, "net")
    assert smaller is not None
    assert [u.lifetime for u in smaller["net"].layers] == [F] * kept + [S] * (count - kept)
    assert smaller["net"].trunk.lifetime is F
    assert smaller.peak_bytes < plan.peak_bytes


def test_where_half_frees_nothing_all_of_them_go() -> None:
    net = make_net(depth=3, side=0)
    smaller = halved(plan_for({"net": net}, [F]), "net")
    assert smaller is not None
    assert {u.lifetime for u in smaller["net"].layers} == {S}


@pytest.mark.parametrize("lifetimes", [[P], [S], [P, S], [F, S, S, S, S, S, S, S]], ids=str)
def test_where_nothing_can_be_freed_there_is_no_smaller_plan(lifetimes: list[Lifetime]) -> None:
    net = make_net(depth=2 if lifetimes[0] is F else 6, side=0)
    assert halved(plan_for({"net": net}, lifetimes), "net") is None


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("on purpose")


def test_the_component_in_which_it_failed_is_demoted_and_the_retry_is_right(attach: Attach) -> None:
    modules = {"text_encoder": make_net(1, depth=6), "transformer": make_net(2, depth=6)}
    plain = copy.deepcopy(modules)
    card = virtual_card()
    residency = attach(modules, plan_for(modules, [F]), card)
    before = residency.plan
    handle = modules["transformer"].blocks[3].down.register_forward_pre_hook(out_of_memory)
    with pytest.raises(torch.OutOfMemoryError), residency.request():
        modules["transformer"](modules["text_encoder"](tokens(1)).argmax(1), picture(1))
    handle.remove()
    said = residency.demote()
    assert said.startswith("transformer now keeps 4 of 8 layers")
    assert "`transformer: {resident_layers: 4}`" in said
    assert residency.plan["text_encoder"] == before["text_encoder"]
    assert residency.plan.peak_bytes <= before.peak_bytes
    for seed in range(2):
        with residency.request() as usage:
            first = modules["text_encoder"](tokens(seed))
            second = modules["transformer"](tokens(seed), picture(seed))
        assert torch.equal(first, plain["text_encoder"](tokens(seed)))
        assert torch.equal(second, plain["transformer"](tokens(seed), picture(seed)))
    assert usage.components["transformer"].copied_bytes > 0
    report = residency.snapshot().components["transformer"]
    assert report.resident_layers == 4
    assert card.usage().allocated_bytes == residency.plan.standing_bytes


def test_nothing_is_demoted_where_nothing_is_lent(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    assert residency.demote("net") == ""
    assert residency.demote() == ""


def test_demoting_within_a_request_is_refused(attach: Attach) -> None:
    net = make_net()
    residency: Residency = attach({"net": net}, plan_for({"net": net}, [F]))
    with residency.request(), pytest.raises(StateError, match="cannot demote while a request"):
        residency.demote("net")
