"""The order checker against an oracle that forgets nothing and searches the graph of all steps."""

import random

from offload.cards.order import OrderChecker
from offload.errors import OrderError
from tests.offload.cards.points import Point, span

STREAMS = ("compute", "copy", "side")


def random_steps(rng: random.Random) -> list[tuple]:
    """Accesses of which most, not all, are handed over to the other streams by events."""
    steps: list[tuple] = []
    for _ in range(rng.randint(2, 14)):
        stream, event = rng.choice(STREAMS), rng.randint(0, 2)
        verb = "read" if rng.random() < 0.6 else "write"
        steps.append((verb, stream, rng.randint(0, 12), rng.randint(1, 6)))
        if rng.random() < 0.9:
            steps.append(("record", stream, event))
            heard = [other for other in STREAMS if rng.random() < 0.9]
            steps += [("wait", other, event) for other in heard]
        elif rng.random() < 0.3:
            steps.append(("host_wait", event))
    return steps


def happens_before(edges: dict[int, set[int]], first: int, then: int) -> bool:
    seen, todo = set(), [then]
    while todo:
        node = todo.pop()
        if node == first:
            return True
        if node not in seen:
            seen.add(node)
            todo.extend(edges[node])
    return False


def first_race(steps) -> int | None:
    """The oracle: keep every step for ever as a node, search the graph for each pair."""
    edges: dict[int, set[int]] = {}  # step -> steps just before it
    last: dict[str, int] = {}
    recorded: dict[int, int] = {}
    accesses, host = [], set()
    for index, step in enumerate(steps):
        verb, *rest = step
        edges[index] = set(host)
        if verb == "host_wait":
            if rest[0] in recorded:
                host.add(recorded[rest[0]])
            continue
        stream = rest[0]
        if stream in last:
            edges[index].add(last[stream])
        last[stream] = index
        if verb == "record":
            recorded[rest[1]] = index
        elif verb == "wait":
            edges[index] |= {recorded[rest[1]]} if rest[1] in recorded else set()
        else:
            start, end = rest[1], rest[1] + rest[2]
            for earlier, writes, low, high in accesses:
                conflict = low < end and start < high and (writes or verb == "write")
                if conflict and not happens_before(edges, earlier, index):
                    return index
            accesses.append((index, verb == "write", start, end))
    return None


def first_error(steps) -> int | None:
    order, events = OrderChecker(), {}
    for index, (verb, *rest) in enumerate(steps):
        try:
            if verb in ("read", "write"):
                getattr(order, verb)(span(rest[1], rest[1] + rest[2]), rest[0], f"step {index}")
            elif verb == "record":
                order.record(events.setdefault(rest[1], Point()), rest[0])
            elif verb == "wait" and rest[1] in events:
                order.wait(events[rest[1]], rest[0])
            elif verb == "host_wait" and rest[0] in events:
                order.host_wait(events[rest[0]])
        except OrderError:
            return index
    return None


def test_it_finds_the_race_that_a_search_over_the_whole_history_finds():
    found = []
    for seed in range(3000):
        steps = random_steps(random.Random(seed))
        found.append(first_error(steps))
        assert found[-1] == first_race(steps), f"seed {seed}"
    assert 600 < found.count(None) < 2400  # both kinds were tried often
