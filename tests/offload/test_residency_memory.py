"""Guarantee: at every moment the card holds what the plan says, read from the live storages."""

import gc
import weakref

import pytest
import torch

from offload import Residency, SimulatedCard
from offload.plan import ComponentPlan
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


def storage_of(module: torch.nn.Module) -> int:
    """Bytes that a module's parameters can read now, placeholders being empty."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.parametrize("lifetimes", [[S], [F], [P, S], [P, F, S], [F, S, S, S]])
@pytest.mark.parametrize("window", [2, 3])
def test_every_layer_boundary_holds_permanent_forward_and_window(
    lifetimes, window: int, attach: Attach
) -> None:
    net = make_net(depth=6)
    plan = tight(plan_for({"net": net}, lifetimes, window=window))
    card = virtual_card(plan.peak_bytes)
    attach({"net": net}, plan, card)
    component = plan["net"]
    expected = plan.standing_bytes + plan.running_bytes_of(component)
    seen: list[int] = []
    for block in net.blocks:
        block.register_forward_pre_hook(lambda *_: seen.append(card.usage().allocated_bytes))
        block.register_forward_hook(lambda *_: seen.append(card.usage().allocated_bytes))
    net(tokens(1))
    assert seen == [expected] * 12
    assert card.usage().peak_bytes == expected == plan.peak_bytes
    assert card.usage().allocated_bytes == plan.standing_bytes


@pytest.mark.parametrize("window", [2, 3])
def test_at_most_window_streamed_layers_hold_storage(window: int, attach: Attach) -> None:
    net = make_net(depth=8, side=0)
    residency = attach({"net": net}, plan_for({"net": net}, [S], window=window))
    counts: list[int] = []

    def inside(block: torch.nn.Module, *_: object) -> None:
        counts.append(sum(storage_of(other) > 0 for other in net.blocks))
        busy = residency._components["net"].run.window.busy  # type: ignore[union-attr]
        assert len(busy) <= window
        assert storage_of(block) > 0

    for block in net.blocks:
        block.up.register_forward_pre_hook(inside)
    with residency.request():
        for seed in range(3):
            net(tokens(seed))
    assert len(counts) == 24
    assert max(counts) <= window


def test_requests_leave_the_permanent_units_alone(attach: Attach) -> None:
    net = make_net()
    card = virtual_card()
    attach({"net": net}, plan_for({"net": net}, [P, F, S]), card)
    permanent = {n: p for n, p in net.named_parameters() if p.numel() > 0}
    before = {n: (id(p), p.data_ptr()) for n, p in permanent.items()}
    net(tokens(1))
    net.decode(picture(1))
    after = {n: (id(p), p.data_ptr()) for n, p in net.named_parameters() if p.numel() > 0}
    assert before == after
    assert len(before) > 0
    assert set(card.ledger()) == {label for label in card.ledger() if "/permanent/" in label}


def test_parameters_stay_the_same_objects_with_the_same_flags(attach: Attach) -> None:
    net = make_net()
    net.blocks[0].up.weight.requires_grad_(True)
    flags = {
        n: (id(p), p.requires_grad, p.dtype, p.is_inference()) for n, p in net.named_parameters()
    }
    attach({"net": net}, plan_for({"net": net}, [S, F, P]))
    with torch.inference_mode():
        net(tokens(1))
    assert flags == {
        n: (id(p), p.requires_grad, p.dtype, p.is_inference()) for n, p in net.named_parameters()
    }
    net(tokens(2))  # and it still runs outside inference mode


def test_permanent_units_have_no_host_copy_and_the_others_have_one(attach: Attach) -> None:
    net = make_net()
    plan = plan_for({"net": net}, [P, F, S])
    residency = attach({"net": net}, plan)
    component: ComponentPlan = plan["net"]
    lent = component.bytes_with(F) + component.bytes_with(S)
    snapshot = residency.snapshot()
    assert snapshot.host.store_bytes == lent == snapshot.components["net"].host_bytes
    assert snapshot.components["net"].on_card_bytes == plan.standing_bytes


def test_buffers_are_placed_once_alive_and_mutable(attach: Attach) -> None:
    net = make_net()
    card = virtual_card()
    attach({"net": net}, plan_for({"net": net}, [S]), card)
    assert card.ledger()["net/permanent/buffers"] == plan_for({"net": net}, [S])["net"].buffer_bytes
    for _ in range(3):
        net(tokens(1))
    assert net.calls.item() == 3


def test_two_components_take_turns_and_do_not_add_up(attach: Attach) -> None:
    """Two transformers used in turn are not both held where the budget needs the room."""
    modules = {"transformer": make_net(1), "transformer_2": make_net(2)}
    plan = tight(plan_for(modules, [F]))
    card = virtual_card(plan.peak_bytes)
    residency = attach(modules, plan, card)
    with residency.request() as usage:
        modules["transformer"](tokens(1))
        modules["transformer_2"](tokens(1))
        assert residency.snapshot().components["transformer"].on_card_bytes < plan.peak_bytes // 4
        modules["transformer"](tokens(2))
    assert usage.peak_bytes == plan.peak_bytes
    assert plan.peak_bytes < sum(plan.running_bytes_of(c) for c in plan.components)


def test_with_room_a_component_is_held_through_the_gap_and_moves_once(attach: Attach) -> None:
    modules = {"controlnet": make_net(1), "transformer": make_net(2)}
    plan = plan_for(modules, [F])
    residency = attach(modules, plan)
    for _ in range(2):
        with residency.request() as usage:
            for step in range(3):
                modules["controlnet"](tokens(step))
                modules["transformer"](tokens(step), picture(step))
        assert usage.components["transformer"].copied_bytes == plan["transformer"].bytes_with(F)
        assert usage.components["transformer"].passes == 3


def test_a_longer_request_than_the_last_moves_its_set_twice_at_most(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F]))
    once = residency.plan["net"].bytes_with(F)
    copied = []
    for passes in (2, 20, 20):
        with residency.request() as usage:
            for seed in range(passes):
                net(tokens(seed), picture(seed))
        copied.append(usage.components["net"].copied_bytes)
    assert copied == [once, 2 * once, once]


def test_what_is_not_needed_again_is_gone_before_the_next_component_runs(attach: Attach) -> None:
    """Learnt from the last request: the transformer's lent layers are gone when the VAE decodes."""
    modules = {"transformer": make_net(1), "vae": make_net(2)}
    card = virtual_card()
    residency = attach(modules, plan_for(modules, [F]), card)
    for request in range(2):
        with residency.request():
            for step in range(3):
                modules["transformer"](tokens(step), picture(step))
            held = "transformer/forward" in card.ledger()
            modules["vae"].decode(picture(1))
        assert held is (request == 0)


def test_after_detach_everything_can_be_freed() -> None:
    net = make_net()
    card = virtual_card()
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [P, F, S]))
    net(tokens(1))
    residency.detach()
    assert card.usage().allocated_bytes == 0
    gone = [weakref.ref(net), weakref.ref(residency)]
    del net, residency
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_text_only_request_moves_no_byte_of_the_side_list(attach: Attach) -> None:
    net: Net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F]))
    plan = residency.plan["net"]
    blocks = sum(u.num_bytes for u in plan.layers if u.list_name == "blocks") + plan.trunk.num_bytes
    with residency.request() as first:
        net(tokens(1))
    with residency.request() as second:
        net(tokens(2))
    assert second.components["net"].copied_bytes == blocks < first.components["net"].copied_bytes
    assert first.components["net"].wasted_bytes == first.components["net"].copied_bytes - blocks
    assert second.components["net"].wasted_bytes == 0
    with residency.request() as surprised:
        net(tokens(1), picture(1))  # another kind of pass: served at once
    assert surprised.components["net"].copied_bytes == plan.bytes_with(F)


@pytest.mark.parametrize(
    ("lifetimes", "head"), [([P, P, S], "blocks.2"), ([S], "blocks.0"), ([P, F, S], "blocks.1")]
)
def test_the_first_copy_after_load_is_the_head_of_stream_and_never_the_set(
    lifetimes, head: str, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = make_net()
    plan = plan_for({"net": net}, lifetimes)
    attach({"net": net}, plan)
    copied: list[str] = []
    copy_ = SimulatedCard.copy

    def noting(card, destination, source, unit, charge_to) -> None:
        copied.append(unit)
        copy_(card, destination, source, unit, charge_to)

    monkeypatch.setattr(SimulatedCard, "copy", noting)
    for seed in range(2):
        net(tokens(seed))
    lent = {unit.name for unit in plan["net"].units if unit.lifetime is not P}
    assert copied[:2] == ["trunk", head]  # the trunk is there for the whole run
    assert set(copied) <= lent
