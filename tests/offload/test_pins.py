"""Guarantee: a residency locks what its share allows, by rank, and again under every other plan."""

import logging

import pytest
import torch
from torch import nn

from offload import Residency, SimulatedCard
from offload.pin_budget import PinBudget, locked_bytes
from tests.offload.fake_pinner import FakePinner
from tests.offload.nets import F, P, S, make_net, plan_for, tokens, virtual_card


class Share:
    """Allows so many bytes, and notes what it was asked and told."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.asked: list[int] = []
        self.told: list[int] = []

    def ask(self, wanted_bytes: int) -> PinBudget:
        self.asked.append(wanted_bytes)
        return PinBudget(num_bytes=self.num_bytes, why="as the test says")

    def tell(self, pinned_bytes: int) -> None:
        self.told.append(pinned_bytes)


def pinning_card(share_bytes: int) -> tuple[SimulatedCard, FakePinner, Share]:
    card, pinner, share = virtual_card(), FakePinner(), Share(share_bytes)
    card.pinner, card.pin_share = pinner, share  # type: ignore[assignment]  # a fake
    return card, pinner, share


def pinned_names(residency: Residency) -> set[str]:
    store = residency._store
    return {
        f"{name}.{unit.name}"
        for name, assembly in residency._assemblies.items()
        for unit in assembly.units
        if store.pinned_bytes_of(unit)
    }


def locked_pages(pinner: FakePinner) -> int:
    return sum(map(locked_bytes, pinner.locked.values()))


def modules() -> dict[str, nn.Module]:
    return {"a": make_net(0), "b": make_net(1)}


BLOCK = locked_bytes(1)  # a block of these nets is smaller than a page


def test_streamed_units_of_all_components_are_locked_before_forward_ones(attach) -> None:
    parts = modules()  # five blocks and two side blocks each, by turns
    card, pinner, share = pinning_card(7 * BLOCK)
    residency = attach(parts, plan_for(parts, [F, S]), card)
    streamed = {f"{name}.blocks.{i}" for name in parts for i in (1, 3)}
    streamed |= {f"{name}.side.0" for name in parts}
    assert streamed <= pinned_names(residency)
    assert len(pinned_names(residency)) == 7
    assert share.told == [locked_pages(pinner)] == [7 * BLOCK]
    assert share.asked == [16 * BLOCK]  # seven layers and the trunk of both


def test_permanent_units_ask_for_nothing(attach) -> None:
    parts = modules()
    card, pinner, share = pinning_card(1 << 30)
    attach(parts, plan_for(parts, P), card)
    assert (share.asked, share.told, pinner.asked) == ([0], [0], [])


def test_units_without_a_pin_are_lent_all_the_same(attach) -> None:
    parts = modules()
    with torch.inference_mode():
        expected = [part(tokens()) for part in parts.values()]
    card, pinner, _ = pinning_card(3 * BLOCK)
    residency = attach(parts, plan_for(parts, [F, S]), card)
    assert len(pinner.locked) == 3
    with residency.request():
        for part, output in zip(parts.values(), expected, strict=True):
            assert torch.equal(part(tokens()), output)


def test_another_plan_is_locked_by_its_own_ranking(attach) -> None:
    parts = modules()
    card, pinner, share = pinning_card(4 * BLOCK)
    another, whole = plan_for(parts, [S, P]), plan_for(parts, P)
    residency = attach(parts, plan_for(parts, [F, S]), card)
    residency.apply(another)
    streamed = {"blocks.0", "blocks.2", "blocks.4", "side.1"}
    assert pinned_names(residency) <= {f"{name}.{unit}" for name in parts for unit in streamed}
    assert share.told[-1] == locked_pages(pinner) == 4 * BLOCK
    residency.apply(whole)
    assert pinner.locked == {}
    assert share.told[-1] == 0


def test_the_snapshot_counts_what_is_really_locked(attach) -> None:
    parts = modules()
    card, pinner, share = pinning_card(1 << 30)
    pinner.refuse_from = 2  # the driver gives no more
    residency = attach(parts, plan_for(parts, F), card)
    assert residency.snapshot().host.pinned_bytes == 2 * BLOCK
    assert share.told == [2 * BLOCK]


def test_detaching_unlocks_everything() -> None:
    parts = modules()
    card, pinner, _ = pinning_card(1 << 30)
    residency = Residency.attach(parts, card=card, plan=plan_for(parts, [F, S]))
    assert len(pinner.locked) == 16
    residency.detach()
    assert pinner.locked == {}


def test_one_line_says_how_much_is_locked_and_is_not_said_twice() -> None:
    parts = modules()
    card, _, _ = pinning_card(4 * BLOCK)
    lines: list[str] = []
    plan = plan_for(parts, [F, S])
    residency = Residency.attach(parts, card=card, plan=plan, log=lines.append)
    residency.apply(plan, log=lines.append)
    (line,) = [line for line in lines if "page-locked" in line]
    assert line.endswith("the pin budget is 16.0 KiB, as the test says")
    assert "16.0 KiB page-locked, 48.0 KiB not (a " in line
    residency.detach()


def test_a_card_without_pins_asks_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    parts, card, share = modules(), virtual_card(), Share(1 << 30)
    card.pin_share = share
    with caplog.at_level(logging.INFO):
        Residency.attach(parts, card=card, plan=plan_for(parts, F)).detach()
    assert share.asked == share.told == []
    assert "page-locked" not in caplog.text
