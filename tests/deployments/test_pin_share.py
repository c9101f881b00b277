"""Replicas on one node together lock no more than a part of what the node had free before them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from deployments.config import AppConfig
from deployments.host import HostMemory
from deployments.neighbours import Node
from deployments.pin_share import SHARE, NodePinShare
from offload import ComponentSpec, Residency, ResidencySpec, SimulatedCard, format_bytes
from tests.offload.fake_pinner import PAGE, FakePinner

GIB = 1 << 30


class Machine:
    """Free memory as replicas take it; their host copies are gone from what is free."""

    def __init__(self, free_bytes: int, limit_bytes: int | None = None) -> None:
        self.free_bytes = free_bytes
        self.limit_bytes = limit_bytes

    def read(self) -> HostMemory:
        return HostMemory(
            total_bytes=1 << 50, limit_bytes=self.limit_bytes, available_bytes=self.free_bytes
        )


Join = Callable[[str], Node]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    nodes: list[Node] = []

    def join_(name: str) -> Node:
        nodes.append(Node(name, tmp_path))
        return nodes[-1]

    yield join_
    for node in nodes:
        node.leave()


def host(machine: Machine, num_bytes: int) -> int:
    """Host copies of so many bytes are made; returns them."""
    machine.free_bytes -= num_bytes
    return num_bytes


def test_alone_it_may_lock_a_part_of_what_was_free_before_its_own_copies(join: Join) -> None:
    machine = Machine(100 * GIB)
    share = NodePinShare(join("one"), read=machine.read)
    budget = share.ask(host(machine, 30 * GIB))
    assert budget.num_bytes == int(SHARE * 100 * GIB)
    assert budget.why == "80% of the 100.00 GiB that may be taken"


def test_two_that_start_together_get_half_each(join: Join) -> None:
    machine = Machine(100 * GIB)
    first, second = (NodePinShare(join(name), read=machine.read) for name in "ab")
    copies = [host(machine, 60 * GIB), host(machine, 40 * GIB)]  # both are loaded, then they ask
    early = first.ask(copies[0])
    assert early.num_bytes == 24 * GIB  # nobody has told it whose the other 40 are
    budget = second.ask(copies[1])
    assert budget.num_bytes == 40 * GIB
    assert budget.why == (
        "this replica's part of 80% of the 100.00 GiB that may be taken, which the node's 2 share"
    )
    assert first.ask(copies[0]).num_bytes == 40 * GIB  # as after a change of plan


def test_a_latecomer_gets_its_part_where_the_first_one_left_it(join: Join) -> None:
    machine = Machine(100 * GIB)
    first = NodePinShare(join("a"), read=machine.read)
    assert first.ask(host(machine, 10 * GIB)).num_bytes == 80 * GIB
    first.tell(10 * GIB)
    late = NodePinShare(join("b"), read=machine.read)
    assert late.ask(host(machine, 50 * GIB)).num_bytes == 40 * GIB


def test_a_latecomer_gets_what_is_left_where_the_first_one_took_more_than_half(join: Join) -> None:
    machine = Machine(100 * GIB)
    first = NodePinShare(join("a"), read=machine.read)
    first.ask(host(machine, 70 * GIB))
    first.tell(70 * GIB)
    late = NodePinShare(join("b"), read=machine.read)
    budget = late.ask(host(machine, 20 * GIB))
    assert budget.num_bytes == 10 * GIB
    assert budget.why.startswith("what the other replicas on this node leave of 80% of the 100.00")


def test_only_what_was_really_locked_counts_for_the_others(join: Join) -> None:
    machine = Machine(100 * GIB)
    first = NodePinShare(join("a"), read=machine.read)
    first.ask(host(machine, 70 * GIB))
    first.tell(0)  # the driver locked nothing
    late = NodePinShare(join("b"), read=machine.read)
    assert late.ask(host(machine, 20 * GIB)).num_bytes == 40 * GIB


def test_what_a_replica_that_ended_had_locked_is_free(join: Join, tmp_path: Path) -> None:
    machine = Machine(100 * GIB)
    gone = Node("gone", tmp_path)
    NodePinShare(gone, read=machine.read).ask(host(machine, 70 * GIB))
    gone.leave()
    machine.free_bytes += 70 * GIB
    budget = NodePinShare(join("a"), read=machine.read).ask(host(machine, 10 * GIB))
    assert budget.num_bytes == 80 * GIB


def test_a_container_s_limit_is_what_counts_and_is_named(join: Join) -> None:
    machine = Machine(10 * GIB, limit_bytes=12 * GIB)
    budget = NodePinShare(join("a"), read=machine.read).ask(0)
    assert budget.num_bytes == 8 * GIB
    assert budget.why.endswith("that may be taken under the container's memory limit")


def test_nothing_free_is_nothing_to_lock(join: Join) -> None:
    machine = Machine(0)
    other = join("b")
    with other.looking():
        other.say(pinned_bytes=5 * GIB)  # more than there is
    assert NodePinShare(join("a"), read=machine.read).ask(0).num_bytes == 0


def test_a_size_in_the_file_is_taken_as_it_is(join: Join) -> None:
    machine, node = Machine(1), join("a")
    budget = NodePinShare(node, 3 * GIB, read=machine.read).ask(9 * GIB)
    assert (budget.num_bytes, budget.why) == (3 * GIB, "as pin_budget says")
    assert node.own.pinned_bytes == 3 * GIB  # its neighbours reckon with it


def test_where_the_system_does_not_tell_everything_may_be_locked(join: Join) -> None:
    budget = NodePinShare(join("a"), read=lambda: None).ask(9 * GIB)
    assert budget.num_bytes == 9 * GIB
    assert format_bytes(9 * GIB) not in budget.why


def config(**args: object) -> AppConfig:
    return AppConfig.model_validate({"model": {"name": "demo"}, **args})


def test_the_file_says_a_size_or_auto() -> None:
    assert config().pin_budget_bytes is None
    assert config(pin_budget="auto").pin_budget_bytes is None
    assert config(pin_budget="12GiB").pin_budget_bytes == 12 * GIB
    assert config(pin_budget=0).pin_budget_bytes == 0


@pytest.mark.parametrize("value", ["much", -1, "all"])
def test_anything_else_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(ValueError, match="pin_budget"):
        config(pin_budget=value)


def test_two_replicas_lock_no_more_together_than_their_node_allows(join: Join) -> None:
    host_pages, free_pages = 16, 34  # of each replica; of the node before both
    held: list[Residency] = []

    def read() -> HostMemory:
        available = (free_pages - host_pages * (len(held) + 1)) * PAGE
        return HostMemory(total_bytes=1 << 50, limit_bytes=None, available_bytes=available)

    for name in ("first", "second"):
        net = nn.Sequential(
            *(nn.Linear(32, 32, bias=False) for _ in range(host_pages))
        )  # a page each
        card = SimulatedCard(memory_bytes=1 << 20, bytes_per_s=1e9)
        card.pinner = FakePinner()  # type: ignore[assignment]
        card.pin_share = NodePinShare(join(name), read=read)
        wish = ResidencySpec(components={"net": ComponentSpec(resident_layers="none")})
        held.append(Residency.attach({"net": net}, card=card, spec=wish))
        assert held[-1].snapshot().host.store_bytes == host_pages * PAGE
    pinned = [residency.snapshot().host.pinned_bytes // PAGE for residency in held]
    for residency in held:
        residency.detach()
    assert pinned == [16, int(SHARE * free_pages) - 16]  # the second one: what is left
