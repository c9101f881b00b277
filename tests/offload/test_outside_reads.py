"""Guarantee: a first request shows every weight that is read outside its layer's call.

Kept in the trunk, it is there for the whole run, and the module computes what it always did.
"""

import copy
from collections.abc import Collection, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from offload import Residency, ResidencySpec, SpecError, survey_component
from offload.guard import DispatchGuard
from offload.spec import ComponentSpec
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.odd_nets import ODD, make_odd
from tests.offload.sibling_nets import SIBLINGS, Siblings, make_sibling

PLANS = {"forward": [F], "streamed": [S], "mixed": [P, F, S]}
STREAMED = ComponentSpec(resident_layers="none")


def managed(
    net: nn.Module, lifetimes, keep: Mapping[str, Collection[str]] | None = None
) -> Residency:
    plan = plan_for({"net": net}, lifetimes, keep_in_trunk=keep)
    return Residency.attach({"net": net}, card=virtual_card(), plan=plan, keep_in_trunk=keep)


@pytest.mark.parametrize("name", SIBLINGS)
def test_one_request_finds_every_outside_read_and_computes_right(name) -> None:
    net = make_sibling(name)
    expected = copy.deepcopy(net)(picture())
    residency = managed(net, [S])
    with residency.outside_reads() as found:
        assert torch.equal(net(picture()), expected)
    assert set(found) == {"net"}
    assert set(found["net"]) == SIBLINGS[name][1]
    for parameter, notice in found["net"].items():
        assert notice.startswith(f"net: {parameter} is read outside the call of its unit ")


@pytest.mark.parametrize("lifetimes", PLANS)
@pytest.mark.parametrize("name", SIBLINGS)
def test_kept_in_the_trunk_it_is_right_and_nothing_is_found_again(name, lifetimes) -> None:
    net = make_sibling(name)
    plain = copy.deepcopy(net)
    residency = managed(net, PLANS[lifetimes], {"net": SIBLINGS[name][1]})
    with residency.outside_reads() as found:
        assert torch.equal(net(picture()), plain(picture()))
    assert not found
    with DispatchGuard() as guard:
        guard.watch(residency._components)
        for seed in range(3):
            assert torch.equal(net(picture(seed)), plain(picture(seed)))
    residency.detach()
    assert torch.equal(net(picture(4)), plain(picture(4)))


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_read_that_happens_to_find_the_weight_counts_too(name) -> None:
    """Once a forward unit was called its weights stay for the run: a demotion would end that."""
    net = make_sibling(name)
    residency = managed(net, [F])
    with residency.outside_reads() as found:
        net(picture())
    assert set(found["net"]) == SIBLINGS[name][1]
    residency.detach()


@pytest.mark.parametrize("lifetimes", PLANS)
@pytest.mark.parametrize("name", ODD)
def test_reads_in_the_own_call_and_of_the_trunk_are_not_found(name, lifetimes) -> None:
    net = make_odd(name)
    expected = copy.deepcopy(net)(picture())
    residency = managed(net, PLANS[lifetimes])
    with residency.outside_reads() as found:
        for _ in range(2):
            assert torch.equal(net(picture()), expected)
    assert found == {}
    residency.detach()


def test_counting_parameters_between_passes_is_not_found() -> None:
    net = make_net()
    residency = managed(net, [S])
    with residency.outside_reads() as found:
        assert sum(parameter.numel() for parameter in net.parameters()) == 0
        assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
        assert all(parameter.is_floating_point() for parameter in net.parameters())
        net(tokens())
    assert found == {}
    residency.detach()


def test_a_read_between_passes_is_found_of_the_trunk_too() -> None:
    net = make_net()
    residency = managed(net, [S])
    expected = float(copy.deepcopy(make_net()).shift.sum())
    with residency.outside_reads() as found, residency.request():
        assert float(net.shift.sum()) == expected
        net(tokens())
    assert set(found["net"]) == {"shift"}
    residency.detach()


def test_the_plan_follows_what_is_kept_in_the_trunk() -> None:
    net = make_net()
    kept = {"blocks.1.up.weight", "blocks.3.scale"}
    before, after = (survey_component(net, "net", keep) for keep in ((), kept))
    moved = sum(dict(net.named_parameters())[n].numel() * 4 for n in ("blocks.1.up.weight",))
    assert after.trunk.num_bytes == before.trunk.num_bytes + moved + 256  # the scale: one boundary
    assert after.weight_bytes == before.weight_bytes
    assert [u.name for u in after.layers] == [u.name for u in before.layers]
    assert after.kept_in_trunk == tuple(sorted(kept))
    residency = Residency.attach(
        {"net": net},
        card=virtual_card(),
        spec=ResidencySpec(components={"net": STREAMED}),
        keep_in_trunk={"net": kept},
    )
    assert residency.plan["net"].trunk.num_bytes == after.trunk.num_bytes
    residency.detach()


def test_a_layer_of_which_all_is_kept_is_no_layer_any_more() -> None:
    net = make_net()
    kept = [name for name, _ in net.named_parameters() if name.startswith("side.0.")]
    names = [unit.name for unit in survey_component(net, "net", kept).layers]
    assert "side.0" not in names
    assert "side.1" in names


def test_a_weight_that_shares_its_storage_takes_the_others_along() -> None:
    net = make_odd("fused views")
    facts = survey_component(net, "net", ["blocks.2.q"])
    fused = net.get_parameter("blocks.2.q").untyped_storage().nbytes()
    assert facts.trunk.num_bytes == survey_component(net, "net").trunk.num_bytes + fused


@pytest.mark.parametrize(
    ("keep", "words"),
    [({"net": ["blocks.9.scale"]}, "blocks.9.scale"), ({"vae": ["x"]}, "components: net")],
)
def test_names_that_are_none_are_refused(keep, words) -> None:
    net = make_net()
    with pytest.raises(SpecError, match=words):
        Residency.attach({"net": net}, card=virtual_card(), keep_in_trunk=keep)


@given(
    lifetimes=st.lists(st.sampled_from([F, S]), min_size=1, max_size=5),
    read=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from(["sum", "product"])),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_is_read_from_wherever_is_found_and_then_right(lifetimes, read) -> None:
    """In the call of layer ``at``, weights of layer ``of`` are read, unless it is the same."""
    with torch.no_grad():
        torch.manual_seed(0)
        net = Siblings().eval().requires_grad_(False)
        for at, of, how in read:
            net.blocks[at].register_forward_hook(_Reader(net, of, how))
        expected = net(picture())
        outside = {name for at, of, how in read if at != of for name in _Reader(net, of, how).names}
        residency = managed(net, lifetimes)
        with residency.outside_reads() as found:
            assert torch.equal(net(picture()), expected)
        assert set(found.get("net", {})) >= outside
        residency.detach()
        residency = managed(net, lifetimes, found)
        assert torch.equal(net(picture()), expected)
        residency.detach()


class _Reader:
    """A forward hook that adds to a layer's result what it reads from another layer."""

    def __init__(self, net: Siblings, of: int, how: str) -> None:
        self._net, self._of, self._how = net, of, how
        names = ("scale", "down.bias") if how == "sum" else ("up.weight", "down.weight")
        self.names = tuple(f"blocks.{of}.{name}" for name in names)

    def __call__(self, _: nn.Module, args: object, result: torch.Tensor) -> torch.Tensor:
        first, second = (self._net.get_parameter(name) for name in self.names)
        if self._how == "sum":
            return result + first.sum() + second.mean()
        return result + nn.functional.linear(nn.functional.linear(result, first), second)
