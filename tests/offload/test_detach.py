"""Guarantee: detach, and an attach that fails, leave plain whole modules and nothing of ours."""

import copy
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from offload import DoesNotFitError, Residency, ResidencySpec, SimulatedCard, SpecError, StateError
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.odd_nets import Lumps, lumps

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())


@pytest.fixture(autouse=True, scope="module")
def _quick_collection() -> Iterator[None]:
    """What other tests imported is left out of every ``gc.collect()`` here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class CountingCard(SimulatedCard):
    """Counts the allocations that were not given back, whether or not their memory has died."""

    num_held = 0

    def _allocate(self, num_bytes: int, label: str) -> torch.Tensor:
        memory = super()._allocate(num_bytes, label)
        self.num_held += 1
        return memory

    def _release(self, tensor: torch.Tensor) -> None:
        super()._release(tensor)
        self.num_held -= 1


class Fingerprint:
    """What must be the same after as before; buffers may have new values, not be new objects."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.weights = {
            f"{name}.{path}": (id(p), p.detach().clone())
            for name, module in modules.items()
            for path, p in module.named_parameters(remove_duplicate=False)
        }
        self.buffers = {
            f"{name}.{path}": id(b)
            for name, module in modules.items()
            for path, b in module.named_buffers()
        }
        self.instances = [
            {*m.__dict__, *map(str, m._state_dict_pre_hooks), *map(str, m._forward_hooks)}
            for module in modules.values()
            for m in module.modules()
        ]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Fingerprint)
        assert self.instances == other.instances
        assert self.buffers == other.buffers
        assert list(self.weights) == list(other.weights)
        for name, (identity, weight) in self.weights.items():
            assert identity == other.weights[name][0], name
            assert torch.equal(weight, other.weights[name][1]), name
        return True


@any_plan
def test_modules_come_back_plain_complete_and_the_same_objects(lifetimes) -> None:
    modules = {"transformer": make_net(1), "vae": make_net(2, depth=3)}
    before = Fingerprint(modules)
    card = CountingCard(memory_bytes=1 << 20, bytes_per_s=1e9, clock="virtual")
    residency = Residency.attach(modules, card=card, plan=plan_for(modules, lifetimes))
    with residency.request():
        modules["transformer"](tokens(1), picture(1))
        modules["vae"].decode(picture(2))
    residency.detach()
    assert Fingerprint(modules) == before
    assert card.num_held == 0
    assert card.ledger() == {}
    assert card.num_copies_in_flight == 0
    assert residency._store.store_bytes == 0
    assert dict(residency.iter_weights()) == {}


@any_plan
def test_modules_come_back_without_ever_having_run(lifetimes) -> None:
    modules = {"net": make_net()}
    before = Fingerprint(modules)
    Residency.attach(modules, card=virtual_card(), plan=plan_for(modules, lifetimes)).detach()
    assert Fingerprint(modules) == before


@any_plan
def test_detached_weights_lie_in_no_memory_of_the_card_or_the_store(lifetimes) -> None:
    net = make_net()
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    units = residency._assemblies["net"].units
    ours = [weakref.ref(m) for unit in units for m in (unit.host, unit.memory) if m is not None]
    assert len(ours) > 0
    del units
    residency.detach()
    del residency
    gc.collect()
    assert [ref() for ref in ours] == [None] * len(ours)
    assert card.usage().allocated_bytes == 0
    net(tokens(1))


@any_plan
def test_detaching_keeps_buffer_values(lifetimes) -> None:
    net = make_net()
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
    )
    net(tokens(1))
    net(tokens(1))
    residency.detach()
    assert net.calls.item() == 2
    net(tokens(1))
    assert net.calls.item() == 3


@any_plan
def test_everything_can_be_freed_after_detach_even_under_a_foreign_wrapper(lifetimes) -> None:
    """A wrapper that somebody put over ours keeps ours alive, but nothing behind it."""
    net = make_net()
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    net.forward = (lambda forward: lambda *args: forward(*args))(net.forward)
    net(tokens(1))
    residency.detach()
    gone = [weakref.ref(residency), weakref.ref(card)]
    del residency, card
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    net(tokens(1))


def test_detaching_twice_does_nothing_more() -> None:
    net = make_net()
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S])
    )
    residency.detach()
    residency.detach()
    net(tokens(1))


def test_detaching_within_a_request_is_refused_and_the_request_goes_on() -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = Residency.attach(
        {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S])
    )
    with residency.request():
        net(tokens(1)), plain(tokens(1))
        with pytest.raises(StateError, match="cannot detach while a request is running"):
            residency.detach()
        assert torch.equal(net(tokens(2)), plain(tokens(2)))
    residency.detach()


# --- an attach that fails --------------------------------------------------------------------
@any_plan
@pytest.mark.parametrize("allocations", range(0, 14, 2))
def test_running_out_of_memory_half_way_leaves_whole_modules(allocations: int, lifetimes) -> None:
    modules = {"a": make_net(1), "b": make_net(2)}
    plan = plan_for(modules, lifetimes)
    before = Fingerprint(modules)
    card = virtual_card()
    card.fail_allocation_after(allocations)
    try:
        residency = Residency.attach(modules, card=card, plan=plan)
    except torch.OutOfMemoryError:
        assert Fingerprint(modules) == before
    else:  # fewer permanent units than that
        assert lifetimes != [P]
        residency.detach()
    gc.collect()
    assert card.ledger() == {}
    assert torch.isfinite(modules["a"](tokens(1))).all()


def test_a_card_that_is_too_small_for_a_plan_leaves_whole_modules() -> None:
    modules = {"net": make_net()}
    plan = plan_for(modules, [P, F, S])
    before = Fingerprint(modules)
    card = virtual_card(plan.standing_bytes - 256)
    with pytest.raises(torch.OutOfMemoryError, match="net/permanent"):
        Residency.attach(modules, card=card, plan=plan)
    gc.collect()
    assert Fingerprint(modules) == before
    assert card.ledger() == {}


@pytest.mark.parametrize("after", range(4))
def test_a_copy_that_fails_at_load_leaves_no_hook_and_nothing_on_the_card(after: int) -> None:
    """What was on the card by then is lost with it: on a real one such an error is final."""
    net = make_net()
    instances = Fingerprint({"net": net}).instances
    card = virtual_card()
    error = OSError("the link broke")
    card.fail_copy(error, after=after)
    with pytest.raises(OSError, match="the link broke"):
        Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P, S]))
    assert Fingerprint({"net": net}).instances == instances
    error.__traceback__ = error.__context__ = (
        None  # frames still hold memory, as in an except block
    )
    gc.collect()
    assert card.ledger() == {}


def test_progress_that_raises_leaves_whole_modules() -> None:
    """A replica that is told to stop while it loads."""
    modules = {"net": make_net()}
    before = Fingerprint(modules)

    def stop(component: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    card = virtual_card()
    with pytest.raises(KeyboardInterrupt):
        Residency.attach(modules, card=card, plan=plan_for(modules, [P, F, S]), progress=stop)
    gc.collect()
    assert Fingerprint(modules) == before
    assert card.ledger() == {}


def test_a_wish_that_is_refused_touches_nothing() -> None:
    modules = {"net": make_net()}
    before = Fingerprint(modules)
    card = SimulatedCard(memory_bytes=4096, bytes_per_s=1e9, clock="virtual")
    with pytest.raises(DoesNotFitError):
        Residency.attach(
            modules,
            card=card,
            spec=ResidencySpec(components={"net": "all"}, when_it_does_not_fit="refuse"),  # type: ignore[dict-item]
        )
    with pytest.raises(SpecError, match="nett"):
        Residency.attach(modules, card=card, spec=ResidencySpec(components={"nett": "all"}))  # type: ignore[dict-item]
    assert Fingerprint(modules) == before
    assert card.ledger() == {}


def test_weights_that_are_not_loaded_are_refused_and_nothing_is_touched() -> None:
    with torch.device("meta"):
        ghost = Lumps(blocks=lumps(8, 8))
    modules = {"net": make_net()}
    before = Fingerprint(modules)
    card = virtual_card()
    with pytest.raises(StateError, match="meta device"):
        Residency.attach({**modules, "ghost": ghost}, card=card)
    assert Fingerprint(modules) == before
    assert card.ledger() == {}
