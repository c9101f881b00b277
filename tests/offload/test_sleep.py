"""Guarantee: asleep nothing is on the card, awake everything is as before, bit for bit."""

import copy
import gc
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from offload import Residency, SimulatedCard, StateError
from tests.offload.adapters import ADDED_BYTES, add, remove
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
from tests.offload.odd_nets import ODD, make_odd

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
both_origins = pytest.mark.parametrize("origin", ["memory", "file"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "net.safetensors"


def make(origin: str, file: Path, **sizes: int) -> tuple[Net, Net]:
    """(the net to manage, with its weights in memory or in a mapped file, and a plain one)."""
    net = make_net(**sizes)
    plain = copy.deepcopy(net)
    if origin == "file":
        save_file(net.state_dict(), file)
        net.load_state_dict(load_file(file), assign=True)
        net.requires_grad_(False)
    return net, plain


BUFFER_BYTES = 2 * 256  # of every net here: a count and a table, each on a boundary of its own


def permanent_bytes(residency: Residency) -> int:
    return sum(report.permanent_bytes for report in residency.snapshot().components.values())


def saved_bytes(residency: Residency, before: int) -> int:
    """Bytes that sleep keeps in host memory, besides the host copies that were there ``before``."""
    return residency.snapshot().host.store_bytes - before


def store_bytes(residency: Residency) -> int:
    return residency.snapshot().host.store_bytes


# --- there and back ------------------------------------------------------------------------------
@any_plan
@both_origins
def test_the_card_is_empty_asleep_and_everything_is_as_before_awake(
    origin: str, lifetimes, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    plan = tight(plan_for({"net": net}, lifetimes))
    card = virtual_card(plan.peak_bytes)
    residency = attach({"net": net}, plan, card)
    objects = {name: id(parameter) for name, parameter in net.named_parameters()}
    for seed in range(3):
        assert torch.equal(net(tokens(seed)), plain(tokens(seed)))
        residency.sleep()
        assert residency.asleep
        assert (card.ledger(), card.usage().allocated_bytes) == ({}, 0)
        residency.wake()
        assert not residency.asleep
        assert card.usage().allocated_bytes == plan.standing_bytes
        assert card.num_copies_in_flight == 0
        assert {name: id(p) for name, p in net.named_parameters()} == objects
    with residency.request() as usage:
        assert torch.equal(net(tokens(4)), plain(tokens(4)))
        assert torch.equal(net.decode(picture(4)), plain.decode(picture(4)))
    assert usage.peak_bytes <= plan.peak_bytes


def layout_of(net: nn.Module) -> dict[str, object]:
    return {n: (id(p), p.shape, p.stride(), p.requires_grad) for n, p in net.named_parameters()}


@any_plan
@pytest.mark.parametrize("name", ODD)
def test_odd_weights_survive_a_sleep(name: str, lifetimes, attach: Attach) -> None:
    net = make_odd(name)
    plain = copy.deepcopy(net)
    layout = layout_of(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    for seed in range(2):
        residency.sleep()
        residency.wake()
        assert torch.equal(net(picture(seed)), plain(picture(seed)))
        with residency.suspended():
            assert layout_of(net) == layout


@both_origins
def test_sleeping_twice_and_waking_twice_change_nothing(
    origin: str, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    residency.wake()
    residency.sleep()
    residency.sleep()
    residency.wake()
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@both_origins
def test_what_is_placed_in_inference_mode_can_be_used_outside_of_it(
    origin: str, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    residency = attach({"net": net}, plan_for({"net": net}, [P, F, S]))
    with torch.inference_mode():
        residency.sleep()
        residency.wake()
    assert not any(p.is_inference() for p in [*net.parameters(), *net.buffers()])
    assert torch.equal(net(tokens(1)), plain(tokens(1)))  # it counts in a buffer, in place


def test_a_buffer_keeps_what_it_counted(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    for _ in range(3):
        net(tokens(1))
        residency.sleep()
        residency.wake()
    assert net.calls == 3


def test_the_plain_modules_get_nothing_that_stays(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P, S]))
    before = [set(module.__dict__) for module in net.modules()]
    residency.sleep()
    residency.wake()
    assert [set(module.__dict__) for module in net.modules()] == before


@pytest.mark.parametrize("lifetimes", [[P], [P, F, S]], ids=["permanent", "mixed"])
@both_origins
def test_ten_cycles_cost_no_host_memory(origin: str, lifetimes, file: Path, attach: Attach) -> None:
    net, _ = make(origin, file, width=64, hidden=2048, depth=4)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    before = store_bytes(residency)

    def cycle() -> None:
        residency.sleep()
        residency.wake()
        assert store_bytes(residency) == before

    cycle()
    gc.collect()
    held = resident_bytes()
    for _ in range(10):
        cycle()
    gc.collect()
    one_layer = 2 * 64 * 2048 * 4
    assert resident_bytes() - held < 4 * one_layer  # ten cycles would leave ten of each


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- what is saved, and what is read again -----------------------------------------------------
@any_plan
def test_weights_that_a_file_holds_are_dropped_and_only_buffers_saved(
    lifetimes, file: Path, attach: Attach
) -> None:
    net, _ = make("file", file)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    before = store_bytes(residency)
    for _ in range(2):
        residency.sleep()
        assert saved_bytes(residency, before) == BUFFER_BYTES
        residency.wake()
        assert saved_bytes(residency, before) == 0


@any_plan
def test_weights_that_no_file_holds_are_saved(lifetimes, attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    before, permanent = store_bytes(residency), permanent_bytes(residency)
    residency.sleep()
    assert saved_bytes(residency, before) == permanent + BUFFER_BYTES
    report = residency.snapshot().components["net"]
    assert (report.on_card_bytes, report.host_bytes) == (0, store_bytes(residency))


def double(net: Net, residency: Residency) -> None:
    name = "net.blocks.0.up.weight"
    (weight,) = (tensor for found, tensor in residency.iter_weights() if found == name)
    residency.load_weights([(name, weight * 2)])


def double_in_place(net: Net, residency: Residency) -> None:
    with residency.suspended():
        net.blocks[0].up.weight.data.mul_(2)


def double_in_its_place(net: Net, residency: Residency) -> None:
    with residency.suspended():
        net.blocks[0].up.weight.data = net.blocks[0].up.weight.data * 2


def double_unannounced(net: Net, residency: Residency) -> None:
    net.blocks[0].up.weight.data = net.blocks[0].up.weight.data * 2


@pytest.mark.parametrize(
    "change", [double, double_in_place, double_in_its_place, double_unannounced]
)
def test_a_changed_unit_is_saved_and_no_other_one(change, file: Path, attach: Attach) -> None:
    net, plain = make("file", file)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    block = next(unit for unit in residency.plan["net"].layers if unit.name == "blocks.0")
    before = store_bytes(residency)
    change(net, residency)
    plain.blocks[0].up.weight.data.mul_(2)
    for _ in range(2):
        residency.sleep()
        assert saved_bytes(residency, before) == block.num_bytes + BUFFER_BYTES
        residency.wake()
        assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_weights_that_were_touched_and_are_equal_are_dropped(file: Path, attach: Attach) -> None:
    net, plain = make("file", file)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    before = store_bytes(residency)
    with residency.suspended():
        pass
    residency.load_weights([("net.shift", plain.shift)])
    residency.sleep()
    assert saved_bytes(residency, before) == BUFFER_BYTES
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_weights_changed_between_loading_and_attach_are_not_read_from_the_file(
    file: Path, attach: Attach
) -> None:
    """The mapping is private: a write to it is in memory alone."""
    net, plain = make("file", file)
    for module in (net, plain):
        module.blocks[0].up.weight.data.mul_(2)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    residency.sleep()
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def rewrite(file: Path) -> None:
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file)


@pytest.mark.parametrize("change", [rewrite, Path.unlink])
def test_weights_whose_file_changed_before_sleep_are_saved(
    change, file: Path, attach: Attach
) -> None:
    net, plain = make("file", file)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    before, permanent = store_bytes(residency), permanent_bytes(residency)
    change(file)
    residency.sleep()
    assert saved_bytes(residency, before) == permanent + BUFFER_BYTES
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@both_origins
@pytest.mark.parametrize("drawn", [True, False])
def test_an_adapter_sleeps_too_and_may_be_fused(
    drawn: bool, origin: str, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    card = virtual_card()
    plan = plan_for({"net": net}, [P, S])
    residency = attach({"net": net}, plan, card)

    def cycle() -> None:
        residency.sleep()
        assert card.ledger() == {}
        residency.wake()

    for module in (net, plain):
        add(module, 0)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    cycle()
    assert card.usage().allocated_bytes == plan.standing_bytes + ADDED_BYTES
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    for module in (net, plain):  # as fuse_lora does, in place and outside suspended()
        layer = module.blocks[0].up
        layer.base_layer.weight.data += layer.up @ layer.down
        remove(module, 0)
    if drawn:  # at which the adapter's own memory leaves
        assert torch.equal(net(tokens(2)), plain(tokens(2)))
    cycle()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert card.usage().allocated_bytes == plan.standing_bytes


# --- what cannot be ------------------------------------------------------------------------------
def move_away(file: Path) -> None:
    file.rename(file.with_suffix(".away"))


def touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize("change", [rewrite, move_away, touch])
def test_a_file_that_changed_during_sleep_is_told_and_nothing_is_half_placed(
    change, file: Path
) -> None:
    net, _ = make("file", file)
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P, S]))
    residency.sleep()
    change(file)
    for refused in (residency.wake, residency.detach):
        with pytest.raises(StateError, match=f"{re.escape(str(file))}.*Restart the replica"):
            refused()
        assert (residency.asleep, card.ledger()) == (True, {})
    with pytest.raises(StateError, match=r"asleep.*wake\(\)"):
        net(tokens(1))


class Meddling(SimulatedCard):
    """Somebody writes to a file while the card is filled from it."""

    file: Path | None = None

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None:
        super()._copy(destination, source, charge_to)
        if self.file is not None:
            os.utime(self.file, ns=(1, 1))


def test_a_file_that_changes_while_it_is_read_is_told(file: Path) -> None:
    net, _ = make("file", file)
    card = Meddling(memory_bytes=1 << 20, clock="virtual")
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P]))
    residency.sleep()
    card.file = file
    with pytest.raises(StateError, match=f"{re.escape(str(file))}.*changed while it was read"):
        residency.wake()
    assert (residency.asleep, card.ledger()) == (True, {})


def test_a_file_that_comes_back_unchanged_wakes(file: Path, attach: Attach) -> None:
    net, plain = make("file", file)
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    residency.sleep()
    move_away(file)
    with pytest.raises(StateError, match=r"^net cannot wake.*No such file"):
        residency.wake()
    file.with_suffix(".away").rename(file)
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@both_origins
@pytest.mark.parametrize("after", range(9))
def test_a_wake_without_memory_leaves_it_asleep_and_the_next_one_works(
    after: int, origin: str, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    card = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, [P]), card)  # 9 allocations in all
    residency.sleep()
    card.fail_allocation_after(after)
    with pytest.raises(torch.OutOfMemoryError):
        residency.wake()
    gc.collect()  # the error's frames
    assert (residency.asleep, card.ledger()) == (True, {})
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_memory_that_others_took_meanwhile_is_waited_for_by_trying_again(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    plan = tight(plan_for({"net": net}, [P]))
    card = virtual_card(plan.peak_bytes)
    residency = attach({"net": net}, plan, card)
    residency.sleep()
    card.used_bytes = 1024
    with pytest.raises(torch.OutOfMemoryError):
        residency.wake()
    card.used_bytes = 0
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@both_origins
def test_a_copy_that_fails_at_wake_leaves_it_asleep(
    origin: str, file: Path, attach: Attach
) -> None:
    net, plain = make(origin, file)
    card = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, [P]), card)
    residency.sleep()
    card.fail_copy(RuntimeError("the link broke"), after=4)
    with pytest.raises(RuntimeError, match="the link broke"):
        residency.wake()
    gc.collect()
    assert (residency.asleep, card.ledger()) == (True, {})
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_a_weight_of_another_shape_keeps_it_awake_and_nothing_saved(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    before = store_bytes(residency)
    weight = net.final.weight
    kept, weight.data = weight.data, torch.rand(3)
    with pytest.raises(StateError, match=r"changed from .* \(8,\) to .* \(3,\)"):
        residency.sleep()
    assert (residency.asleep, store_bytes(residency)) == (False, before)
    weight.data = kept
    net(tokens(1))


# --- asleep -------------------------------------------------------------------------------------
USES: dict[str, Callable[[Net, Residency], object]] = {
    "forward": lambda net, residency: net(tokens(1)),
    "root.forward": lambda net, residency: net.forward(tokens(1)),
    "encode": lambda net, residency: net.encode(picture(1)),
    "decode": lambda net, residency: net.decode(picture(1)),
    "a layer": lambda net, residency: net.blocks[1](picture(1)),
    "a leaf of a layer": lambda net, residency: net.blocks[1].norm(picture(1)),
    "a leaf of the trunk": lambda net, residency: net.embed(tokens(1)),
    "to": lambda net, residency: net.to("cpu"),
    "half": lambda net, residency: net.blocks[0].half(),
    "state_dict": lambda net, residency: net.state_dict(),
    "a layer's state_dict": lambda net, residency: net.blocks[0].state_dict(),
    "deepcopy": lambda net, residency: copy.deepcopy(net),
    "request": lambda net, residency: residency.request().__enter__(),
    "suspended": lambda net, residency: residency.suspended().__enter__(),
    "load_weights": lambda net, residency: residency.load_weights([]),
    "iter_weights": lambda net, residency: list(residency.iter_weights()),
    "demote": lambda net, residency: residency.demote("net"),
    "apply": lambda net, residency: residency.apply(residency.plan),
}


@any_plan
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_asleep_is_refused_with_the_way_out(use, lifetimes, attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    residency.sleep()
    with pytest.raises(StateError, match=r"asleep.*wake\(\)"):
        use(net, residency)
    residency.wake()
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


def test_weights_that_were_asked_for_before_sleep_are_not_given_after(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    weights = residency.iter_weights()
    next(weights)
    residency.sleep()
    with pytest.raises(StateError, match=r"asleep.*wake\(\)"):
        next(weights)


def test_sleep_is_refused_in_a_request_and_within_suspended(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    with residency.request(), pytest.raises(StateError, match="cannot sleep while a request"):
        residency.sleep()
    with residency.suspended(), pytest.raises(StateError, match=r"cannot sleep within suspended"):
        residency.sleep()


def test_another_thread_may_neither_put_to_sleep_nor_wake(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [P]))
    errors: list[Exception] = []

    def elsewhere(call: Callable[[], None]) -> None:
        try:
            call()
        except StateError as error:
            errors.append(error)

    def try_elsewhere(call: Callable[[], None]) -> None:
        thread = threading.Thread(target=elsewhere, args=(call,))
        thread.start()
        thread.join()

    try_elsewhere(residency.sleep)
    residency.sleep()
    try_elsewhere(residency.wake)
    assert ["another thread" in str(error) for error in errors] == [True, True]
    assert residency.asleep


@any_plan
@both_origins
def test_detaching_asleep_gives_plain_complete_modules(origin: str, lifetimes, file: Path) -> None:
    net, plain = make(origin, file)
    untouched = [set(module.__dict__) for module in net.modules()]
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, lifetimes))
    for module in (net, plain):
        add(module, 1)
    net(tokens(1)), plain(tokens(1))
    residency.sleep()
    card.used_bytes = card.memory_bytes  # it takes no card memory
    residency.detach()
    for module in (net, plain):
        remove(module, 1)
    assert [set(module.__dict__) for module in net.modules()] == untouched
    ours, theirs = net.state_dict(), plain.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (card.ledger(), store_bytes(residency)) == ({}, 0)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


# --- nothing else releases a permanent unit ------------------------------------------------------
def fail(net: Net, residency: Residency) -> None:
    def stumble(*_: object) -> None:
        raise ValueError("on purpose")

    handle = net.blocks[3].register_forward_pre_hook(stumble)
    with pytest.raises(ValueError, match="on purpose"), residency.request():
        net(tokens(1))
    handle.remove()


def interrupt(net: Net, residency: Residency) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handle = net.blocks[3].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt), residency.request():
        net(tokens(1))
    handle.remove()


def suspend(net: Net, residency: Residency) -> None:
    with residency.suspended():
        net(tokens(1))


def look(net: Net, residency: Residency) -> None:
    with residency.outside_reads():
        net(tokens(1))


def measure(net: Net, residency: Residency) -> None:
    with residency.measuring(), residency.request():
        net(tokens(1))


def draw(net: Net, residency: Residency) -> None:
    with residency.request():
        net(tokens(1)), net.encode(picture(1)), net.decode(picture(1))


def attach_again(net: Net, residency: Residency) -> None:
    with pytest.raises(StateError, match="already attached"):
        Residency.attach({"net": net}, card=residency.card)


SHIFTED = [("net.shift", torch.ones(8)), ("net.blocks.0.up.bias", torch.ones(16))]


def apply_to_what_is_lent(net: Net, residency: Residency) -> None:
    """Another plan releases what that plan does not keep, and nothing else."""
    layers = residency.plan["net"].layers
    other = {P: P, F: S, S: F}
    changed = tuple(replace(layer, lifetime=other[layer.lifetime]) for layer in layers)
    component = replace(residency.plan["net"], layers=changed)
    residency.apply(replace(residency.plan, components=(component,)))


PUBLIC: dict[str, Callable[[Net, Residency], object]] = {
    "apply": apply_to_what_is_lent,
    "attach": attach_again,
    "demote": lambda net, residency: residency.demote("net"),
    "failed_in": lambda net, residency: residency.failed_in,
    "iter_weights": lambda net, residency: list(residency.iter_weights()),
    "load_weights": lambda net, residency: residency.load_weights(SHIFTED),
    "measuring": measure,
    "outside_reads": look,
    "plan": lambda net, residency: residency.plan,
    "request": draw,
    "request that fails": fail,
    "request that is interrupted": interrupt,
    "snapshot": lambda net, residency: residency.snapshot().to_dict(),
    "suspended": suspend,
    "wake": lambda net, residency: residency.wake(),
}


def permanent_places(net: Net) -> dict[str, int]:
    return {name: p.data_ptr() for name, p in net.named_parameters() if p.numel()}


@any_plan
@pytest.mark.parametrize("call", PUBLIC.values(), ids=PUBLIC.keys())
def test_no_public_call_but_apply_sleep_and_detach_releases_a_permanent_unit(
    call, lifetimes, attach: Attach
) -> None:
    net = make_net()
    card: SimulatedCard = virtual_card()
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes), card)
    places, held = permanent_places(net), card.ledger()
    call(net, residency)
    assert permanent_places(net) == places
    assert card.ledger() == held


def test_every_public_call_was_tried() -> None:
    public = {name for name in vars(Residency) if not name.startswith("_")}
    tried = {name.split()[0] for name in PUBLIC}
    assert public - tried <= {"asleep", "detach", "sleep"}
