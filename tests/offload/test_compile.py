"""Guarantee: compiled blocks run streamed, one graph a class; what cannot work is refused."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from offload import Residency, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card


@pytest.fixture
def guard() -> None:
    """Without the dispatch guard: torch.compile compiles nothing under a dispatch mode."""


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compile_blocks(net: Net, **how) -> None:
    for block in [*net.blocks, *net.side]:
        block.compile(**how)


@pytest.mark.parametrize("lifetimes", [[P], [F], [S], [P, F, S]], ids=str)
def test_compiled_blocks_make_one_graph_and_equal_the_plain_module(lifetimes, attach: Attach):
    net = make_net()
    plain = copy.deepcopy(net)
    backend = CompileCounterWithBackend("aot_eager")
    compile_blocks(net, backend=backend, fullgraph=True)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    for seed in range(5):
        with residency.request():
            assert torch.equal(net(tokens(seed), picture(seed)), plain(tokens(seed), picture(seed)))
    assert backend.frame_count == 1  # one class, one shape: no graph again over five requests
    assert not counters["graph_break"]


def test_compiling_within_suspended_works_and_detach_leaves_the_blocks_compiled() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S])
    )
    net(tokens(1))
    backend = CompileCounterWithBackend("aot_eager")
    with residency.suspended():
        compile_blocks(net, backend=backend)
        compiled = net.blocks[0]._compiled_call_impl
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert backend.frame_count == 1
    residency.detach()
    assert net.blocks[0]._compiled_call_impl is compiled
    assert torch.equal(net(tokens(2)), plain(tokens(2)))


def test_compiling_after_attach_is_refused_with_the_way_to_do_it(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    net.blocks[1].compile(backend="aot_eager")
    with pytest.raises(StateError, match=r"compile within residency\.suspended"):
        net(tokens(1))
    with residency.suspended():
        pass
    net(tokens(1))


@pytest.mark.parametrize("lifetimes", [[F], [S], [P, S]], ids=str)
def test_a_model_compiled_whole_is_refused_unless_all_of_it_is_permanent(lifetimes) -> None:
    net = make_net()
    expected = copy.deepcopy(net)(tokens(1))
    net.compile(backend="aot_eager")
    with pytest.raises(StateError, match="compiled as a whole"):
        Residency.attach({"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes))
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [P])
    )
    assert torch.equal(net(tokens(1)), expected)
    residency.detach()


def test_an_optimized_module_is_refused_too() -> None:
    net = make_net()
    whole: Any = torch.compile(net, backend="aot_eager")
    with pytest.raises(StateError, match="compiled as a whole"):
        Residency.attach({"net": whole}, card=virtual_card(), plan=plan_for({"net": whole}, [S]))


def test_replayed_graphs_are_refused_unless_permanent() -> None:
    net = make_net()
    net.blocks[0].compile(mode="reduce-overhead")
    with pytest.raises(StateError, match="reduce-overhead"):
        Residency.attach({"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S]))
    Residency.attach({"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [P])).detach()


def test_a_compiled_block_under_a_cache_is_refused() -> None:
    from diffusers.hooks import HookRegistry, ModelHook

    net = make_net()
    HookRegistry.check_if_exists_or_initialize(net.blocks[0]).register_hook(ModelHook(), "cache")
    net.blocks[0].compile(backend="aot_eager")
    with pytest.raises(StateError, match="under a cache"):
        Residency.attach({"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S]))
