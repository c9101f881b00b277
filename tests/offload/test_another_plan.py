"""Guarantee: under another plan only what changes moves, and the output is the same."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offload import Policy, Residency, SimulatedCard
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.odd_nets import ODD, make_odd
from tests.offload.other_plans import PLANS, host_bytes, on_the_card, other_plan, other_plans

before_ = pytest.mark.parametrize("before", PLANS.values(), ids=PLANS.keys())
after_ = pytest.mark.parametrize("after", PLANS.values(), ids=PLANS.keys())


def same_output(net: Net, plain: Net, seed: int = 1) -> bool:
    ours, theirs = net(tokens(seed), picture(seed)), plain(tokens(seed), picture(seed))
    return torch.equal(ours, theirs) and torch.equal(
        net.decode(picture(seed)), plain.decode(picture(seed))
    )


def places(net: torch.nn.Module) -> dict[str, int]:
    """Where the weights that are on the card between requests lie."""
    return {name: p.data_ptr() for name, p in net.named_parameters() if p.numel()}


def layout_of(net: torch.nn.Module) -> dict[str, object]:
    return {n: (id(p), p.shape, p.stride(), p.requires_grad) for n, p in net.named_parameters()}


def store_bytes(residency: Residency) -> int:
    return residency.snapshot().host.store_bytes


# --- what moves, and what does not -------------------------------------------------------------
@before_
@after_
def test_the_output_the_card_and_the_host_are_those_of_the_other_plan(
    before, after, attach: Attach
) -> None:
    net = make_net()
    plain, layout = copy.deepcopy(net), layout_of(net)
    former = plan_for({"net": net}, before)
    plan = other_plan(former, after)
    card = virtual_card(max(former.peak_bytes, plan.peak_bytes))
    residency = attach({"net": net}, former, card)
    assert same_output(net, plain)
    stay = {u.name for u in plan["net"].units if u.lifetime is P} & {
        u.name for u in former["net"].units if u.lifetime is P
    }
    units = {u.name: u for u in residency._assemblies["net"].units}
    pointers = {p: p.data_ptr() for name in stay for p in units[name].parameters.values()}
    card.reset_peak()
    residency.apply(plan)
    assert card.usage().peak_bytes <= max(former.standing_bytes, plan.standing_bytes)
    assert residency.plan == plan
    for seed in range(2):
        with residency.request() as usage:
            assert same_output(net, plain, seed)
        assert set(usage.components) == {"net"}  # the change's own copies are nobody's
        assert card.ledger() == on_the_card(plan)
        assert store_bytes(residency) == host_bytes(plan)
        assert card.num_copies_in_flight == 0
    assert usage.peak_bytes <= plan.peak_bytes
    assert all(parameter.data_ptr() == where for parameter, where in pointers.items())
    with residency.suspended():
        assert layout_of(net) == layout
    residency.detach()
    assert layout_of(net) == layout
    assert same_output(net, plain)
    assert (card.ledger(), store_bytes(residency)) == ({}, 0)


@pytest.mark.parametrize("name", ODD)
def test_tied_shared_and_strided_weights_stay_so(name: str, attach: Attach) -> None:
    net = make_odd(name)
    plain, layout = copy.deepcopy(net), layout_of(net)
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    for lifetimes in ([S], [P, F], [F], [P]):
        residency.apply(other_plan(former, lifetimes))
        assert torch.equal(net(picture(1)), plain(picture(1)))
        with residency.suspended():
            assert layout_of(net) == layout


def test_between_forward_and_streamed_no_byte_moves_until_the_next_run(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    former = plan_for({"net": net}, [P, F, S])
    card = virtual_card()
    residency = attach({"net": net}, former, card)
    copies, held, where = card._link.num_issued, card.ledger(), places(net)
    host = {id(unit): unit.host for unit in residency._assemblies["net"].units}
    plan = other_plan(former, [P, S, F])
    residency.apply(plan)
    assert card._link.num_issued == copies
    assert (card.ledger(), places(net)) == (held, where)
    assert all(unit.host is host[id(unit)] for unit in residency._assemblies["net"].units)
    assert same_output(net, plain)


def test_the_host_holds_no_more_than_what_has_to_leave_before_the_next_fits(
    attach: Attach,
) -> None:
    net = make_net(depth=12, side=0)
    former = plan_for({"net": net}, [P, S])
    plan = other_plan(former, [S, P])
    residency = attach({"net": net}, former)
    seen = []
    residency.apply(plan, progress=lambda *_: seen.append(store_bytes(residency)))
    layer = plan["net"].layers[0].num_bytes
    assert len(seen) == 1 + 12
    assert max(seen) == host_bytes(plan) + layer == host_bytes(former) + layer


def test_progress_counts_the_units_of_each_component_that_move(attach: Attach) -> None:
    modules = {"transformer": make_net(1, depth=3, side=0), "vae": make_net(2, depth=2, side=0)}
    former = plan_for(modules, [P])
    residency = attach(modules, former)
    seen: list[tuple[str, int, int]] = []
    plan = other_plans(former, {"vae": [P, S]})
    residency.apply(plan, progress=lambda *told: seen.append(told))
    assert seen == [("vae", 0, 2), ("vae", 1, 2), ("vae", 2, 2)]  # a layer and the trunk


def test_what_changed_is_said_and_nothing_else(attach: Attach) -> None:
    modules = {"transformer": make_net(1, depth=4, side=0), "vae": make_net(2)}
    former = plan_for(modules, [P])
    residency = attach(modules, former)
    lines: list[str] = []
    plan = other_plans(former, {"transformer": [P, F]}, trunk=P)
    residency.apply(plan, log=lines.append)
    residency.apply(plan, log=lines.append)
    residency.apply(other_plans(plan, {"transformer": [P, S]}, trunk=P), log=lines.append)
    stays = plan["transformer"].bytes_with(P)
    assert lines[0].startswith(
        "transformer: resident=4/4 (2 permanent, 2 forward), policy=leading; "
    )
    assert f"{stays / 1024:.1f} KiB of it stay on the card, " in lines[0]
    assert lines[1:] == ["transformer: resident=2/4 (permanent), policy=leading"]


def test_window_policy_activations_and_gaps_are_followed(attach: Attach) -> None:
    net = make_net(depth=8, side=0)
    former = plan_for({"net": net}, [S])
    card = virtual_card()
    residency = attach({"net": net}, former, card)
    other = {"window": 3, "policy": Policy.SPREAD, "held_through_gaps": False}
    component = replace(former["net"], activation_bytes=512, **other)
    residency.apply(replace(former, components=(component,)))
    assert residency.plan["net"] == component
    with residency.request() as usage:
        net(tokens(1))
    window = 3 * component.layers[0].num_bytes
    assert component.window_bytes == window
    assert usage.peak_bytes == former.standing_bytes + component.trunk.num_bytes + window


def test_a_plan_that_lends_may_be_taken_while_somebody_measures(attach: Attach) -> None:
    """Measuring watches the layers of what is permanent, and takes only that off again."""
    net = make_net()
    plain = copy.deepcopy(net)
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    with residency.measuring():
        residency.apply(other_plan(former, [S]))
    for seed in range(2):
        assert same_output(net, plain, seed)
    residency.apply(former)
    assert same_output(net, plain)


# --- any sequence --------------------------------------------------------------------------------
@settings(max_examples=40)
@given(data=st.data())
def test_any_sequence_of_plans_between_requests(data: st.DataObject) -> None:
    with torch.no_grad():
        modules = {
            name: make_net(seed, depth=data.draw(st.integers(1, 5), "depth"))
            for seed, name in enumerate(["text_encoder", "transformer"])
        }
        plain = copy.deepcopy(modules)
        former = plan_for(modules, data.draw(st.sampled_from(list(PLANS.values())), "first"))
        card = SimulatedCard(memory_bytes=1 << 30, bytes_per_s=1e9, clock="virtual")
        residency = Residency.attach(modules, card=card, plan=former)
        for step in range(data.draw(st.integers(1, 5), "plans")):
            lifetimes = st.lists(st.sampled_from([P, F, S]), min_size=1, max_size=4)
            plan = other_plans(
                residency.plan,
                {name: data.draw(lifetimes, name) for name in modules},
                trunk=data.draw(st.sampled_from([P, F]), "trunk"),
            )
            held = card.usage().allocated_bytes
            card.reset_peak()
            residency.apply(plan)
            assert card.usage().peak_bytes <= max(held, plan.standing_bytes)
            with residency.request():
                pairs = [
                    (modules[name](tokens(step), picture(step)), net(tokens(step), picture(step)))
                    for name, net in plain.items()
                ]
            assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
            assert card.ledger() == on_the_card(plan)
            assert store_bytes(residency) == host_bytes(plan)
        residency.detach()
        assert card.usage().allocated_bytes == 0


def test_what_was_not_watched_while_it_was_permanent_is_expected_in_its_declared_order(
    attach: Attach,
) -> None:
    """Layers of a permanent component have no hook: that they were not seen teaches nothing."""
    net = make_net(side=0)
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former, virtual_card(former.peak_bytes))
    for _ in range(2):
        net(tokens(1))
    residency.apply(other_plan(former, [S]))
    with residency.request() as usage:
        net(tokens(1))
    assert usage.components["net"].on_the_spot == 0
    assert usage.components["net"].copied_bytes > 0
