"""Guarantee: every wait and every release is needed, and the suite notices when one is missing.

Each mutation takes one of them away; the scenario beside it must then fail. Unmutated, all pass.
"""

from collections.abc import Callable

import pytest
import torch

from offload import OffloadError, Residency, SimulatedCard
from offload.cards.base import COMPUTE, COPY, Card, Event
from offload.unit import Unit
from tests.offload.nets import F, P, S, make_net, picture, plan_for, tight, tokens

Scenario = Callable[[], None]


def scenario(lifetimes: list, run: Callable[[Residency, torch.nn.Module], None]) -> Scenario:
    def play() -> None:
        net = make_net(depth=6)
        plan = tight(plan_for({"net": net}, lifetimes))
        card = SimulatedCard(memory_bytes=plan.peak_bytes, bytes_per_s=1e9, clock="virtual")
        residency = Residency.attach({"net": net}, card=card, plan=plan)
        run(residency, net)
        assert card.num_copies_in_flight == 0
        assert card.usage().allocated_bytes == plan.standing_bytes
        assert card.order is not None
        assert card.order.num_allocations == len(card.ledger())
        residency.detach()
        assert card.order.num_allocations == 0

    return play


def two_requests(residency: Residency, net: torch.nn.Module) -> None:
    for seed in range(2):
        with residency.request():
            first, second = net(tokens(seed)), net(tokens(seed), picture(seed))
        assert not first.isnan().any()
        assert not second.isnan().any()


def aborted(residency: Residency, net: torch.nn.Module) -> None:
    """A run that ends while copies that nobody read are under way."""

    def stop(*_: object) -> None:
        raise KeyError("a layer fails")

    handle = net.blocks[0].up.register_forward_pre_hook(stop)
    with pytest.raises(KeyError):
        net(tokens(1))
    handle.remove()
    two_requests(residency, net)


STREAMED = scenario([S], two_requests)
FORWARD = scenario([F], two_requests)
PERMANENT = scenario([P], two_requests)
ABORTED = scenario([S], aborted)
SCENARIOS = {"streamed": STREAMED, "forward": FORWARD, "permanent": PERMANENT, "aborted": ABORTED}


def play_all() -> None:
    for play in SCENARIOS.values():
        play()


@pytest.mark.parametrize("play", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_unmutated_scenarios_pass(play: Scenario) -> None:
    play()


def without_wait(monkeypatch: pytest.MonkeyPatch, event_name: str, stream: str) -> list[str]:
    """Take away every wait of ``stream`` on events of that name; returns what was taken."""
    taken: list[str] = []
    wait = Card.wait

    def mutated(card: Card, event: Event, on: str, charge_to: str = "") -> None:
        if event.name.startswith(event_name) and on == stream:
            taken.append(event.name)
            return
        wait(card, event, on, charge_to)

    monkeypatch.setattr(Card, "wait", mutated)
    return taken


WAITS = {
    "birth of an arena": ("born net/forward", COPY, FORWARD),
    "birth of the window": ("born net/streamed", COPY, STREAMED),
    "birth of permanent memory": ("born net/permanent", COPY, PERMANENT),
    "place is free": ("free ", COPY, STREAMED),
    "streamed unit is ready": ("ready blocks", COMPUTE, STREAMED),
    "forward unit is ready": ("ready blocks", COMPUTE, FORWARD),
    "trunk is ready": ("ready trunk", COMPUTE, STREAMED),
    "last copy of an aborted run": ("last copy", COMPUTE, ABORTED),
}


@pytest.mark.parametrize(("event", "stream", "play"), WAITS.values(), ids=WAITS.keys())
def test_a_removed_wait_is_noticed(
    event: str, stream: str, play: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = without_wait(monkeypatch, event, stream)
    with pytest.raises((OffloadError, AssertionError)):
        play()
    assert taken


def test_a_removed_host_wait_on_staging_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The staging buffer is refilled while its last copy still reads it: wrong weights."""
    monkeypatch.setattr(Card, "host_wait", lambda self, event: None)
    with pytest.raises((OffloadError, AssertionError)):
        scenario([P], _equals_plain)()


def _equals_plain(residency: Residency, net: torch.nn.Module) -> None:
    assert torch.equal(net(tokens(3)), make_net(depth=6)(tokens(3)))


RECORDS = {"born": COMPUTE, "free ": COMPUTE, "ready": COPY, "last copy": COPY}


@pytest.mark.parametrize(("event", "stream"), RECORDS.items(), ids=RECORDS.keys())
def test_a_removed_record_is_noticed(
    event: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Card.record

    def mutated(card: Card, which: Event, on: str) -> None:
        if not (which.name.startswith(event) and on == stream):
            record(card, which, on)

    monkeypatch.setattr(Card, "record", mutated)
    with pytest.raises((OffloadError, AssertionError)):
        play_all()


def test_a_removed_release_of_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Card, "release", lambda self, tensor: None)
    with pytest.raises((OffloadError, AssertionError)):
        STREAMED()


def test_a_removed_release_of_parameters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views that stay bound keep the memory alive: the ledger is not back to the permanent set."""
    release = Unit.release
    monkeypatch.setattr(Unit, "release", lambda self: self.state == "loaded" and release(self))
    with pytest.raises((OffloadError, AssertionError, RuntimeError)):
        FORWARD()


def test_views_that_are_not_dropped_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "forget", lambda self: None)
    with pytest.raises((OffloadError, AssertionError, RuntimeError)):
        FORWARD()
