"""Guarantee: a plan of something else, or at a bad time, is refused by name, and nothing moves."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from offload import ResidencyPlan, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import P, S, make_net, plan_for, tokens, virtual_card
from tests.offload.other_plans import other_plan


def places(net: torch.nn.Module) -> dict[str, int]:
    """Where the weights that are on the card between requests lie."""
    return {name: p.data_ptr() for name, p in net.named_parameters() if p.numel()}


# --- when it is refused --------------------------------------------------------------------------
def test_it_is_refused_in_a_request_asleep_within_suspended_and_by_itself(attach: Attach) -> None:
    net = make_net()
    former = plan_for({"net": net}, [P])
    plan = other_plan(former, [S])
    residency = attach({"net": net}, former)
    with residency.request(), pytest.raises(StateError, match="cannot apply a plan while a req"):
        residency.apply(plan)
    with residency.suspended(), pytest.raises(StateError, match="cannot apply a plan within susp"):
        residency.apply(plan)
    residency.sleep()
    with pytest.raises(StateError, match=r"cannot apply a plan while .* asleep: call wake\(\)"):
        residency.apply(plan)
    residency.wake()
    with pytest.raises(StateError, match="cannot begin a request while another plan is applied"):
        residency.apply(plan, progress=lambda *_: residency.request().__enter__())
    assert residency.plan == former
    net(tokens(1))


def test_another_thread_may_not(attach: Attach) -> None:
    net = make_net()
    former = plan_for({"net": net}, [P])
    residency = attach({"net": net}, former)
    errors: list[str] = []

    def elsewhere() -> None:
        try:
            residency.apply(other_plan(former, [S]))
        except StateError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "another thread" in errors[0]
    assert residency.plan == former


def without_layer(plan: ResidencyPlan) -> ResidencyPlan:
    net = plan["net"]
    return replace(plan, components=(replace(net, layers=net.layers[:-1]),))


def larger_layer(plan: ResidencyPlan) -> ResidencyPlan:
    first, *others = plan["net"].layers
    layers = (replace(first, num_bytes=first.num_bytes + 256), *others)
    return replace(plan, components=(replace(plan["net"], layers=layers),))


def renamed(plan: ResidencyPlan) -> ResidencyPlan:
    return replace(plan, components=(replace(plan["net"], name="unet"),))


REFUSED: dict[str, tuple[Callable[[ResidencyPlan], ResidencyPlan], str]] = {
    "another component": (renamed, "the plan is of unet, and attached are net"),
    "no component": (lambda plan: replace(plan, components=()), "of nothing, and attached are net"),
    "fewer units": (without_layer, r"plan of net has other units.*\(side.1\).*residency.facts"),
    "other sizes": (larger_layer, r"plan of net has other units.*\(blocks.0, blocks.0\)"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_plan_of_something_else_is_refused_by_name_and_nothing_moves(
    change, said: str, attach: Attach
) -> None:
    net = make_net()
    former = plan_for({"net": net}, [P])
    card = virtual_card()
    residency = attach({"net": net}, former, card)
    held, where = card.ledger(), places(net)
    with pytest.raises(StateError, match=said):
        residency.apply(change(other_plan(former, [S])))
    assert (residency.plan, card.ledger(), places(net)) == (former, held, where)
