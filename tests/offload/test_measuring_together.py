"""Guarantee: measuring lives with whatever else may stand around a request."""

import pytest
import torch

from offload import Residency
from offload.measured import ComponentMeasured
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card


@pytest.mark.parametrize("lifetimes", [[P], [F], [S], [P, F, S]])
def test_with_the_guard_and_the_search_for_outside_reads(attach: Attach, lifetimes) -> None:
    net = make_net()
    expected = net(tokens(), picture())
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    with residency.measuring() as plain, residency.request():
        net(tokens(), picture())
    with (
        residency.outside_reads() as found,
        residency.measuring() as probe,
        residency.request(),
    ):
        assert torch.equal(net(tokens(), picture()), expected)
    assert not found
    first, then = (each.measured().components["net"] for each in (plain, probe))
    assert (
        then.uses
        == first.uses
        == {f"side.{i}": 1 for i in range(2)} | {f"blocks.{i}": 1 for i in range(5)}
    )
    assert then.order == first.order == ("side.0", "side.1", *(f"blocks.{i}" for i in range(5)))
    assert then.activation_bytes == first.activation_bytes


def measured_when_compiled(net: Net, lifetimes) -> ComponentMeasured:
    plain = make_net()
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
    )
    for _ in range(2):  # the first one compiles
        with residency.measuring() as probe, residency.request():
            assert torch.equal(net(tokens()), plain(tokens()))
    residency.detach()
    return probe.measured().components["net"]


@pytest.mark.parametrize("lifetimes", [[P], [S]])
def test_compiled_blocks_are_seen(lifetimes) -> None:
    net = make_net()
    for block in [*net.blocks, *net.side]:
        block.compile(backend="eager")
    seen = measured_when_compiled(net, lifetimes)
    assert seen.uses == {f"blocks.{i}": 1 for i in range(5)}
    assert set(seen.first_s) == {"trunk", *seen.uses}


def test_of_a_net_that_is_compiled_as_a_whole_every_layer_counts_as_used() -> None:
    net = make_net()
    net.compile(backend="eager")
    seen = measured_when_compiled(net, [P])
    assert seen.uses == {f"blocks.{i}": 1 for i in range(5)} | {f"side.{i}": 1 for i in range(2)}
    assert set(seen.first_s) == {"trunk"}
