"""Guarantee: another plan that cannot be taken whole leaves the former one in force."""

import copy
from itertools import count

import pytest
import torch

from offload import ResidencyPlan, StateError
from offload.host_store import HostStore
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tokens, virtual_card
from tests.offload.other_plans import host_bytes, on_the_card, other_plan


def places(net: torch.nn.Module) -> dict[str, int]:
    """Where the weights that are on the card between requests lie."""
    return {name: p.data_ptr() for name, p in net.named_parameters() if p.numel()}


# --- when it fails -------------------------------------------------------------------------------
PAIRS = {
    "to the card": ([F, S], [P]),
    "both ways": ([P, F, S], [S, P, F]),
    "places exchanged": ([P, S], [S, P]),
    "off the card": ([P], [F, S]),
}
pairs = pytest.mark.parametrize(("before", "after"), PAIRS.values(), ids=PAIRS.keys())
some_come = pytest.mark.parametrize(("before", "after"), [PAIRS[n] for n in list(PAIRS)[:3]])
some_leave = pytest.mark.parametrize(("before", "after"), [PAIRS[n] for n in list(PAIRS)[1:]])


class Case:
    """A net under one plan on a card with not a byte to spare, and the plan to be applied."""

    def __init__(self, attach: Attach, before, after) -> None:
        self.net = make_net(depth=3, side=1)
        self.plain = copy.deepcopy(self.net)
        self.former = plan_for({"net": self.net}, before)
        self.plan = other_plan(self.former, after)
        self.card = virtual_card(max(self.former.standing_bytes, self.plan.standing_bytes))
        self.residency = attach({"net": self.net}, self.former, self.card)

    def check(self, plan: ResidencyPlan) -> None:
        """That plan is in force, in every byte of the card and the host, and the output right."""
        assert self.residency.plan == plan
        assert self.card.ledger() == on_the_card(plan)
        assert self.residency.snapshot().host.store_bytes == host_bytes(plan)
        assert self.card.num_copies_in_flight == 0
        self.card.memory_bytes = 1 << 20  # for what is lent, too
        for seed in range(2):
            ours = self.net(tokens(seed), picture(seed))
            assert torch.equal(ours, self.plain(tokens(seed), picture(seed)))
        assert self.card.ledger() == on_the_card(plan)

    def check_retry(self) -> None:
        """Nothing is left of the failure: it works now."""
        self.residency.apply(self.plan)
        self.check(self.plan)
        self.residency.detach()


def num_to_come(former: ResidencyPlan, plan: ResidencyPlan) -> int:
    """Units that stay on the card under ``plan`` and did not before."""
    stayed = {unit.name for unit in former["net"].units if unit.lifetime is P}
    return sum(u.lifetime is P and u.name not in stayed for u in plan["net"].units)


@some_come
def test_every_allocation_that_fails_is_taken_back(before, after, attach: Attach) -> None:
    first = Case(attach, before, after)
    for at in range(num_to_come(first.former, first.plan)):
        case = Case(attach, before, after)
        case.card.fail_allocation_after(at)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory on card simulated"):
            case.residency.apply(case.plan)
        case.check(case.former)
        case.check_retry()


@some_come
def test_every_copy_that_fails_is_taken_back(before, after, attach: Attach) -> None:
    first = Case(attach, before, after)
    before_it = first.card._link.num_issued
    first.residency.apply(first.plan)
    copies = first.card._link.num_issued - before_it
    assert copies >= num_to_come(first.former, first.plan)
    for at in range(copies):
        case = Case(attach, before, after)
        case.card.fail_copy(OSError("the link is down"), at)
        with pytest.raises(OSError, match="the link is down"):
            case.residency.apply(case.plan)
        case.check(case.former)
        case.check_retry()


@some_leave
def test_every_host_copy_that_finds_no_memory_is_taken_back(
    before, after, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = HostStore.keep
    first = Case(attach, before, after)
    for at in range(num_to_come(first.plan, first.former)):
        case = Case(attach, before, after)
        calls = count()

        def short(*args, at=at, calls=calls) -> None:
            if next(calls) == at:
                raise MemoryError("no host memory is left")
            keep(*args)

        monkeypatch.setattr(HostStore, "keep", short)
        with pytest.raises(MemoryError, match="no host memory"):
            case.residency.apply(case.plan)
        monkeypatch.setattr(HostStore, "keep", keep)
        case.check(case.former)
        case.check_retry()


@pairs
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_whoever_looks_on_may_stop_it_at_any_unit(before, after, error, attach: Attach) -> None:
    told: list[int] = []
    first = Case(attach, before, after)
    first.residency.apply(first.plan, progress=lambda *_: told.append(1))
    assert len(told) > 1
    for at in range(len(told)):
        case = Case(attach, before, after)
        calls = count()

        def stop(*_, at=at, calls=calls) -> None:
            if next(calls) == at:
                raise error("on purpose")

        with pytest.raises(error, match="on purpose"):
            case.residency.apply(case.plan, progress=stop)
        case.check(case.former)
        case.check_retry()


def refuse_line(_: str) -> None:
    raise ValueError("on purpose")


@pairs
def test_an_error_at_the_very_end_is_taken_back(before, after, attach: Attach) -> None:
    case = Case(attach, before, after)
    with pytest.raises(ValueError, match="on purpose"):
        case.residency.apply(case.plan, log=refuse_line)
    case.check(case.former)
    case.check_retry()


def test_a_component_that_cannot_be_watched_goes_back_to_the_card(attach: Attach) -> None:
    """Compiled as a whole it may stay on the card, and nothing of it may be lent."""
    case = Case(attach, [P], [S])
    with case.residency.suspended():
        case.net._compiled_call_impl = case.net._call_impl  # as net.compile() sets it
    with pytest.raises(StateError, match="compiled as a whole"):
        case.residency.apply(case.plan)
    case.check(case.former)


def test_what_is_freed_meanwhile_and_taken_by_others_gives_plain_modules(attach: Attach) -> None:
    """Neither plan can be had: nothing is lost, nothing is half managed."""
    case = Case(attach, [P, S], [S, P])
    untouched = [set(module.__dict__) for module in case.plain.modules()]

    def grab(*_: object) -> None:
        case.card.used_bytes = case.card.memory_bytes

    with pytest.raises(StateError, match=r"could not be applied \(out of.*detached, plain and"):
        case.residency.apply(case.plan, progress=grab)
    assert (case.card.ledger(), case.residency.snapshot().host.store_bytes) == ({}, 0)
    assert [set(module.__dict__) for module in case.net.modules()] == untouched
    ours, theirs = case.net.state_dict(), case.plain.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(case.net(tokens(1)), case.plain(tokens(1)))
    case.card.used_bytes = 0
    attach({"net": case.net}, plan_for({"net": case.net}, [P]))
    assert torch.equal(case.net(tokens(1)), case.plain(tokens(1)))
