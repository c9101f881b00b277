"""Guarantee: a run begins at every door, others' wrappers keep working, ours leave no trace."""

import copy
import functools
import inspect
from collections.abc import Callable

import pytest
import torch
from diffusers.hooks import HookRegistry, ModelHook
from torch import nn

from offload import Residency
from offload.doors import argument_names, door_names, given
from offload.history import PassKind
from offload.wrapper import Wrapper
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.odd_nets import ManyDoors

LENT = [F, S]


def instance_dicts(root: nn.Module) -> list[set[str]]:
    return [set(module.__dict__) for module in root.modules()]


# --- which doors -----------------------------------------------------------------------------
DOORS: dict[str, Callable[[ManyDoors], torch.Tensor]] = {
    "call": lambda net: net(picture(1)),
    "forward": lambda net: net.forward(picture(1)),
    "encode": lambda net: net.encode(picture(1)),
    "decode": lambda net: net.decode(picture(1)),
    "generate": lambda net: net.generate(picture(1), max_new_tokens=3),
    "get_image_features": lambda net: net.get_image_features(pixel_values=picture(1)),
    "get_text_features": lambda net: net.get_text_features(picture(1)),
    "tiled_decode": lambda net: net.tiled_decode(picture(1)),
    "quantize": lambda net: net.quantize(picture(1)),
    "a layer": lambda net: net.blocks[1](picture(1)),
    "a trunk leaf": lambda net: net.head(picture(1)),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_brings_the_weights_and_leaves_none_behind(door: str, attach: Attach) -> None:
    net = ManyDoors().eval().requires_grad_(False)
    expected = DOORS[door](copy.deepcopy(net))
    card = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, LENT), card)
    for _ in range(2):
        with residency.request() as usage:
            assert torch.equal(DOORS[door](net), expected)
        assert usage.components["net"].passes == 1
        assert card.ledger() == {}


@pytest.mark.parametrize(
    "door", [name for name in DOORS if name not in ("call", "a layer", "a trunk leaf")]
)
def test_each_door_is_a_kind_of_pass_of_its_own(door: str, attach: Attach) -> None:
    net = ManyDoors().eval().requires_grad_(False)
    residency = attach({"net": net}, plan_for({"net": net}, LENT))
    DOORS[door](net)
    arguments = {"generate": ("max_new_tokens", "x"), "get_image_features": ("pixel_values",)}
    kind = PassKind("net", door, arguments.get(door, ("x",)))
    assert residency.history.order(kind, ["never seen"]) != ("never seen",)


def test_doors_are_methods_and_never_submodules() -> None:
    """A vector-quantised VAE has a submodule named quantize; its call must stay a module's call."""
    net = ManyDoors()
    assert set(door_names(net)) == set(DOORS) - {"call", "a layer", "a trunk leaf"}
    other = make_net()
    other.add_module("quantize", nn.Linear(8, 8))
    assert "quantize" not in door_names(other)


def test_a_submodule_with_a_doors_name_is_still_itself_while_managed(attach: Attach) -> None:
    net = make_net()
    quantizer = nn.Embedding(4, 8).requires_grad_(False)
    net.add_module("quantize", quantizer)
    expected = copy.deepcopy(quantizer)(torch.arange(4))
    attach({"net": net}, plan_for({"net": net}, LENT))
    assert net.quantize is quantizer
    assert torch.equal(net.quantize(torch.arange(4)), expected)


def test_signatures_and_names_stay_readable(attach: Attach) -> None:
    """Pipelines ask for the parameters of forward and encode."""
    net = make_net()
    before = [
        inspect.signature(method) for method in (net.forward, net.encode, net.blocks[0].forward)
    ]
    attach({"net": net}, plan_for({"net": net}, LENT))
    after = [
        inspect.signature(method) for method in (net.forward, net.encode, net.blocks[0].forward)
    ]
    assert before == after
    assert net.forward.__name__ == "forward"


def test_mutable_arguments_are_passed_by_identity(attach: Attach) -> None:
    """A causal VAE hands its cache list down and reads it afterwards."""
    net = ManyDoors().eval().requires_grad_(False)
    attach({"net": net}, plan_for({"net": net}, LENT))
    cache: list[torch.Tensor] = []
    net.decode(picture(1), cache=cache)
    assert len(cache) == len(net.blocks)


def test_results_and_errors_pass_unchanged(attach: Attach) -> None:
    net = ManyDoors().eval().requires_grad_(False)
    attach({"net": net}, plan_for({"net": net}, LENT))
    with pytest.raises(TypeError, match="unexpected keyword"):
        net.decode(picture(1), no_such_argument=1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        net(torch.rand(2, 3))


# --- argument names --------------------------------------------------------------------------
def test_arguments_that_are_none_do_not_count_and_places_do_not_matter() -> None:
    def call(a: object, b: object = None, *more: object, c: object = None) -> None: ...

    names = argument_names(call)
    assert names == ("a", "b")
    assert (
        given(names, (1, 2), {})
        == given(names, (1,), {"b": 2})
        == given(names, (), {"b": 2, "a": 1})
    )
    assert given(names, (1, None), {"c": None}) == ("a",)
    assert given(names, (1, 2, 3, None), {"c": 0}) == ("a", "argument 2", "b", "c")


# --- taking off ------------------------------------------------------------------------------
@pytest.mark.parametrize("lifetimes", [[P], LENT])
def test_unwatching_restores_every_instance(lifetimes) -> None:
    net = make_net()
    before = instance_dicts(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
    )
    assert instance_dicts(net) != before
    residency.detach()
    assert instance_dicts(net) == before
    assert "forward" not in net.__dict__


def test_a_forward_put_on_the_instance_before_attach_works_and_comes_back(attach: Attach) -> None:
    """accelerate and peft replace forward on the instance."""
    net = make_net()
    plain = copy.deepcopy(net)
    for module in (net, net.blocks[1]):
        module.forward = functools.partial(_doubled, module.forward)
    mine = [net.__dict__["forward"], net.blocks[1].__dict__["forward"]]
    residency = attach({"net": net}, plan_for({"net": net}, LENT))
    plain.blocks[1].register_forward_hook(lambda module, args, out: out * 2)
    expected = plain(tokens(1)) * 2
    assert torch.equal(net(tokens(1)), expected)
    residency.detach()
    assert [net.__dict__["forward"], net.blocks[1].__dict__["forward"]] == mine
    assert torch.equal(net(tokens(1)), expected)


def _doubled(forward: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    return forward(*args, **kwargs) * 2


def test_a_wrapper_put_on_after_attach_survives_detach_and_calls_pass_through() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, LENT)
    )
    for module in (net, net.blocks[1]):
        module.forward = functools.partial(_doubled, module.forward)
    plain.blocks[1].register_forward_hook(lambda module, args, out: out * 2)
    expected = plain(tokens(1)) * 2
    assert torch.equal(net(tokens(1)), expected)
    theirs = net.__dict__["forward"]
    residency.detach()
    assert net.__dict__["forward"] is theirs
    assert torch.equal(net(tokens(1)), expected)


def test_a_wrapper_left_under_someone_elses_holds_nothing_of_its_owner() -> None:
    module = nn.Linear(2, 2)
    held: list[object] = []

    def around(call, args, kwargs):
        held.append(call)
        return call(*args, **kwargs)

    wrapper = Wrapper(module, "forward", around)
    module.forward = functools.partial(module.forward)
    module(torch.rand(1, 2))
    wrapper.remove()
    module(torch.rand(1, 2))
    assert len(held) == 1
    cells = [cell.cell_contents for cell in wrapper.wrapped.__closure__ or ()]
    assert around not in cells
    assert all(around not in vars(cell).values() for cell in cells if isinstance(cell, Wrapper))


# --- diffusers' hooks ------------------------------------------------------------------------
class Skipping(ModelHook):
    """As a cache does it: every second call of the block is answered from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def new_forward(self, module: nn.Module, *args: object, **kwargs: object) -> torch.Tensor:
        if self.last is None:
            self.last = self.fn_ref.original_forward(*args, **kwargs)
            return self.last
        last, self.last = self.last, None
        return last


@pytest.mark.parametrize("when", ["before attach", "after attach"])
def test_a_block_cache_of_diffusers_skips_and_the_result_is_the_same(
    when: str, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    _cache(plain.blocks[2])
    if when == "before attach":
        _cache(net.blocks[2])
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    if when == "after attach":
        _cache(net.blocks[2])
    for _ in range(2):
        with residency.request():
            managed = [net(tokens(step)) for step in range(4)]
        assert all(torch.equal(a, plain(tokens(step))) for step, a in enumerate(managed))


def test_a_block_skipped_by_a_cache_is_not_counted_as_used(attach: Attach) -> None:
    """Observed at the innermost forward, under the registry."""
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    _cache(net.blocks[2])
    net(tokens(1))
    net(tokens(2))
    kind = PassKind("net", "forward", ("tokens",))
    assert residency.history.order(kind, []) == ("blocks.0", "blocks.1", "blocks.3", "blocks.4")


def test_a_registry_put_on_after_attach_can_be_removed_after_detach() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S])
    )
    _cache(net.blocks[2])
    net(tokens(1))
    residency.detach()
    HookRegistry.check_if_exists_or_initialize(net.blocks[2]).remove_hook("skipping", recurse=False)
    assert torch.equal(net(tokens(3)), plain(tokens(3)))


def _cache(block: nn.Module) -> None:
    HookRegistry.check_if_exists_or_initialize(block).register_hook(Skipping(), "skipping")
