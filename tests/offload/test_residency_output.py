"""Guarantee: the output is the plain module's, bit for bit, under every plan and calling order."""

import asyncio
import copy
import itertools
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offload import Residency, SimulatedCard
from tests.offload.adapters import add, remove
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card

PLANS = {
    "permanent": [P],
    "forward": [F],
    "streamed": [S],
    "mixed thirds": [P, F, S],
    "streamed with one permanent": [S, S, P, S],
    "forward then streamed": [F, F, S],
}


def calls(net: Net) -> list[torch.Tensor]:
    """Every door, in an order that no declaration foretells."""
    return [
        net(tokens(1)),
        net(tokens(2), picture(2)),
        net(tokens(1)),
        net.decode(picture(3)),
        net.encode(picture(4)),
        net.decode(picture(5)),
        net(tokens(6), image=picture(6)),
    ]


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
def test_three_requests_equal_the_plain_module(lifetimes, window, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes, window=window))
    for _ in range(3):
        with residency.request():
            managed = calls(net)
        assert all(torch.equal(a, b) for a, b in zip(managed, calls(plain), strict=True))


@pytest.mark.parametrize("threaded", [False, True])
def test_output_is_right_on_the_wall_clock_where_copies_are_late(threaded: bool) -> None:
    net = make_net()
    expected = calls(copy.deepcopy(net))
    card = SimulatedCard(memory_bytes=1 << 20, bytes_per_s=20e6, threaded=threaded)
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [F, S, S]))
    with residency.request() as usage:
        managed = calls(net)
    assert all(torch.equal(a, b) for a, b in zip(managed, expected, strict=True))
    assert usage.components["net"].stall_s > 0
    residency.detach()


def test_calls_outside_a_request_are_requests_of_their_own(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, [F, S]), card)
    standing = card.usage().allocated_bytes
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert card.usage().allocated_bytes == standing
    assert residency.snapshot().components["net"].on_card_bytes == standing


@given(data=st.data())
def test_any_plan_and_any_calls(data: st.DataObject) -> None:
    """Random modules, lifetimes, windows and call patterns, with blocks called directly as well."""
    depth = data.draw(st.integers(2, 7), "depth")
    with torch.no_grad():
        net = make_net(data.draw(st.integers(0, 3), "seed"), depth=depth)
        plain = copy.deepcopy(net)
        lifetimes = data.draw(st.lists(st.sampled_from([P, F, S]), min_size=1, max_size=depth))
        window = data.draw(st.integers(2, 4), "window")
        card = virtual_card()
        residency = Residency.attach(
            {"net": net}, card=card, plan=plan_for({"net": net}, lifetimes, window=window)
        )
        standing = card.usage().allocated_bytes
        pointers = {p: p.data_ptr() for u in permanent_units(residency) for p in u}
        call = st.sampled_from(["forward", "image", "encode", "decode", "block", "skip", "reverse"])
        ending = st.sampled_from(
            [None, None, ValueError, asyncio.CancelledError, KeyboardInterrupt]
        )
        adapted = False
        for requests in range(data.draw(st.integers(1, 4), "requests")):
            if data.draw(st.booleans(), "change adapter"):
                adapted = not adapted
                for module in (net, plain):
                    (add if adapted else remove)(module)
            names = data.draw(st.lists(call, min_size=1, max_size=4), "calls")
            error = data.draw(ending, "ending")
            if error is not None:
                fail_once(net, data.draw(st.integers(0, depth - 1), "failing block"), error)
                with suppress(error), residency.request():
                    for name in names:
                        one_call(net, name, requests)
                net.calls.copy_(plain.calls)
                stop_failing(net)
                assert_back(card, residency, standing)
            with residency.request():
                results = [one_call(net, name, requests) for name in names]
            expected = [one_call(plain, name, requests) for name in names]
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
            assert_back(card, residency, standing)
        assert all(p.data_ptr() == pointers[p] for p in pointers)
        residency.detach()
        assert card.usage().allocated_bytes == 0


def fail_once(net: Net, block: int, error: type[BaseException]) -> None:
    """Let one block raise at its next call, if it is called."""

    def fail(*_: object) -> None:
        stop_failing(net)
        raise error("on purpose")

    net.failing = net.blocks[block].down.register_forward_pre_hook(fail)


def stop_failing(net: Net) -> None:
    net.failing.remove()


def assert_back(card: SimulatedCard, residency: Residency, standing: int) -> None:
    """Only permanent units on the card, an adapter's among them, and nothing under way."""
    adopted = residency._assemblies["net"].adopted_bytes
    assert card.usage().allocated_bytes == standing + adopted
    assert card.num_copies_in_flight == 0


def permanent_units(residency: Residency) -> list[list[torch.nn.Parameter]]:
    assembly = residency._assemblies["net"]
    return [list(unit.parameters.values()) for unit in assembly.units if unit in assembly.permanent]


def one_call(net: Net, name: str, seed: int) -> torch.Tensor:
    if name == "forward":
        return net(tokens(seed))
    if name == "image":
        return net(tokens(seed), picture(seed))
    x = picture(seed)
    if name in ("encode", "decode"):
        return getattr(net, name)(x)
    if name == "block":
        return net.blocks[0](net.blocks[-1](net.blocks[0](x)))
    blocks = list(net.blocks)[::2] if name == "skip" else list(net.blocks)[::-1]
    for block in itertools.chain(blocks, [net.final]):
        x = block(x)
    return x
