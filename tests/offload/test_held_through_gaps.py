"""Guarantee: what is lent is held through a gap where the plan says so, else moved once a run.

SD3 encodes for the prompt and, after others have, for the negative one; a ControlNet and its
network take turns in every step.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from offload import Lifetime, RequestUsage, ResidencyPlan
from tests.offload.conftest import Attach
from tests.offload.nets import F, P, S, make_net, plan_for, tokens, virtual_card
from tests.offload.other_plans import on_the_card

SD3 = ["text_encoder", "text_encoder_2", "text_encoder", "text_encoder_2"]
CONTROLNET = ["controlnet", "transformer"] * 3
GUIDED = ["transformer", "transformer", "controlnet"] * 2  # two passes a run
SEQUENCES = {"twice-used encoders": SD3, "controlnet": CONTROLNET, "two passes a run": GUIDED}
sequences = pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES.keys())
lent = pytest.mark.parametrize("lifetimes", [[F], [S], [P, F, S]], ids=str)


class Case:
    """Nets that take turns under a plan that drops the gaps of some."""

    def __init__(
        self, attach: Attach, sequence: Sequence[str], lifetimes, dropped: Sequence[str] = ()
    ) -> None:
        names = list(dict.fromkeys(sequence))
        self.sequence = sequence
        self.modules = {name: make_net(seed, depth=9, side=0) for seed, name in enumerate(names)}
        self.plain = copy.deepcopy(self.modules)
        self.plan = dropping(plan_for(self.modules, lifetimes), dropped)
        self.card = virtual_card()
        self.residency = attach(self.modules, self.plan, self.card)

    def request(self) -> RequestUsage:
        with self.residency.request() as usage:
            ours = [self.modules[name](tokens(seed)) for seed, name in enumerate(self.sequence)]
        theirs = [self.plain[name](tokens(seed)) for seed, name in enumerate(self.sequence)]
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert self.card.ledger() == on_the_card(self.plan)
        return usage


def dropping(plan: ResidencyPlan, names: Sequence[str]) -> ResidencyPlan:
    components = (replace(c, held_through_gaps=c.name not in names) for c in plan.components)
    return replace(plan, components=tuple(components))


def runs(sequence: Sequence[str], name: str) -> int:
    """Stretches of passes of one component with nobody else's in between."""
    before = [None, *sequence[:-1]]
    return sum(now == name != last for last, now in zip(before, sequence, strict=True))


def lent_bytes(plan: ResidencyPlan, name: str, lifetime: Lifetime) -> int:
    return plan[name].bytes_with(lifetime)


@sequences
@lent
def test_held_its_forward_units_are_moved_once(sequence, lifetimes, attach: Attach) -> None:
    case = Case(attach, sequence, lifetimes)
    for _ in range(3):
        usage = case.request()
    for name, component in usage.components.items():
        streamed = lent_bytes(case.plan, name, S) * sequence.count(name)
        assert component.copied_bytes == lent_bytes(case.plan, name, F) + streamed
        assert component.wasted_bytes == 0


@sequences
@lent
def test_dropped_they_are_moved_once_a_run_and_nothing_in_vain(
    sequence, lifetimes, attach: Attach
) -> None:
    """In the first request too: nobody knows of the gap yet, and the window may have wrapped."""
    case = Case(attach, sequence, lifetimes, dropped=sequence)
    first = case.request()
    for _ in range(2):
        usage = case.request()
    for name, component in usage.components.items():
        forward = lent_bytes(case.plan, name, F) * runs(sequence, name)
        streamed = lent_bytes(case.plan, name, S) * sequence.count(name)
        assert component.copied_bytes == forward + streamed
        assert component.wasted_bytes == 0
        at_first = first.components[name]
        assert at_first.copied_bytes - at_first.wasted_bytes == forward + streamed


@sequences
def test_dropped_nothing_of_it_is_there_while_another_runs(sequence, attach: Attach) -> None:
    case = Case(attach, sequence, [F], dropped=sequence)
    held: list[set[str]] = []
    for module in case.modules.values():
        module.final.register_forward_pre_hook(lambda *_: held.append(set(case.card.ledger())))
    for _ in range(2):
        case.request()
    expected = [{f"{name}/forward"} for name in sequence] * 2
    assert [{label for label in now if label.endswith("/forward")} for now in held] == expected


def test_one_may_be_held_while_the_other_is_dropped(attach: Attach) -> None:
    case = Case(attach, CONTROLNET, [F], dropped=["controlnet"])
    for _ in range(2):
        usage = case.request()
    moved = {name: component.copied_bytes for name, component in usage.components.items()}
    assert moved == {
        "controlnet": 3 * lent_bytes(case.plan, "controlnet", F),
        "transformer": lent_bytes(case.plan, "transformer", F),
    }


def test_held_is_a_wish_within_the_budget(attach: Attach) -> None:
    """With one byte too little for both at once, each gives way to the other."""
    case = Case(attach, CONTROLNET, [F])
    together = sum(case.plan.running_bytes_of(c) for c in case.plan.components)
    for spare_bytes, turns in ((0, 1), (-1, 3)):
        needed = case.plan.standing_bytes + together + spare_bytes
        budget = replace(case.plan.budget, num_bytes=needed)
        case.residency.apply(replace(case.plan, budget=budget))
        for _ in range(2):
            usage = case.request()
        for name, component in usage.components.items():
            assert component.copied_bytes == turns * lent_bytes(case.plan, name, F)


def test_another_plan_may_drop_what_was_held_and_hold_it_again(attach: Attach) -> None:
    case = Case(attach, CONTROLNET, [F])
    once = lent_bytes(case.plan, "controlnet", F)
    moved = []
    for dropped in ([], CONTROLNET, []):
        case.residency.apply(dropping(case.plan, dropped))
        moved.append(case.request().components["controlnet"].copied_bytes)
    assert moved == [once, 3 * once, once]


def test_a_component_that_runs_alone_is_never_dropped(attach: Attach) -> None:
    case = Case(attach, ["transformer"] * 4, [F], dropped=["transformer"])
    for _ in range(2):
        usage = case.request()
        assert usage.components["transformer"].copied_bytes == lent_bytes(
            case.plan, "transformer", F
        )


def test_a_component_called_within_another_does_not_drop_it(attach: Attach) -> None:
    """The outer one is in its pass: what it needs stays."""
    case = Case(attach, ["controlnet", "transformer"], [F], dropped=CONTROLNET)
    inner, outer = case.modules["controlnet"], case.modules["transformer"]
    plain = case.plain["transformer"]
    seen = []
    outer.blocks[1].register_forward_pre_hook(lambda *_: seen.append(inner(tokens(3))))
    for _ in range(2):
        with case.residency.request():
            assert torch.equal(outer(tokens(1)), plain(tokens(1)))
            assert torch.equal(seen[-1], case.plain["controlnet"](tokens(3)))
    assert case.card.ledger() == on_the_card(case.plan)
