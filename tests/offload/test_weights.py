"""Guarantee: every weight is listed once and can be overwritten by name, wherever it lives."""

import copy

import pytest
import torch

from offload import SpecError, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, plan_for, tokens, virtual_card

any_plan = pytest.mark.parametrize("lifetimes", [[P], [F], [S], [P, F, S]], ids=str)


@any_plan
def test_loaded_weights_reach_every_unit_and_permanent_ones_stay_where_they_are(
    lifetimes, attach: Attach
) -> None:
    net, other = make_net(1), make_net(2)
    card = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes), card)
    pointers = {n: p.data_ptr() for n, p in net.named_parameters() if p.numel()}
    pairs = [(f"net.{name}", weight.double()) for name, weight in other.named_parameters()]
    loaded = residency.load_weights(pairs)
    assert sorted(loaded) == sorted(name for name, _ in residency.iter_weights())
    other.table.copy_(net.table)  # a buffer, not a weight
    for seed in range(2):
        assert torch.equal(net(tokens(seed)), other(tokens(seed)))
    assert pointers == {n: p.data_ptr() for n, p in net.named_parameters() if p.numel()}


@any_plan
def test_listed_weights_are_the_checkpoint_s(lifetimes, attach: Attach) -> None:
    net = make_net()
    plain = dict(copy.deepcopy(net).named_parameters())
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    listed = dict(residency.iter_weights())
    assert listed.keys() == {f"net.{name}" for name in plain}
    assert all(torch.equal(listed[f"net.{name}"], weight) for name, weight in plain.items())


def test_unknown_names_and_other_shapes_are_refused(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F]))
    with pytest.raises(
        SpecError, match=r"no weight is called 'net\.unknown'; names look like 'net\."
    ):
        residency.load_weights([("net.unknown", torch.zeros(8))])
    with pytest.raises(SpecError, match=r"net\.shift has shape \(8,\), the new one \(9,\)"):
        residency.load_weights([("net.shift", torch.zeros(9))])
    with residency.request(), pytest.raises(StateError, match="cannot load weights while"):
        residency.load_weights([])
