"""What of a replica's state is told as numbers: (label values, number) pairs, one function each.

It knows the state and offload's reports as plain dicts; nothing of metric names or Prometheus.
"""

from collections.abc import Callable, Iterator

from deployments.latency import BOUNDS_S, Latency
from deployments.messages import ReplicaState

Samples = Iterator[tuple[tuple[str, ...], float]]
LIFETIMES = ("permanent", "forward", "streamed")
PLAN_LABELS = ("component", "lifetime", "policy", "resident", "wish")
EVENTS = ("served", "failed", "cancelled", "refused", "retried", "out_of_memory")
NOW = ("allocated", "reserved", "peak")  # of a card's memory, as of the last job


def memory(state: ReplicaState) -> Samples:
    for component in state.components:
        for lifetime in LIFETIMES:
            yield (component["name"], lifetime), component[f"{lifetime}_bytes"]


def plan(state: ReplicaState) -> Samples:
    for one in state.components:
        resident = f"{one['resident_layers']}/{one['layers']}"
        yield (one["name"], one["lifetime"], one["policy"], resident, one["wish"]), 1


def card(state: ReplicaState) -> Samples:
    """As far as it is known: a replica that starts has measured nothing yet."""
    yield ("total",), state.card.memory_bytes
    yield ("free_at_start",), state.card.free_bytes
    for kind in NOW:
        if (num_bytes := state.memory.get("card", {}).get(f"{kind}_bytes")) is not None:
            yield (kind,), num_bytes


def host(key: str) -> Callable[[ReplicaState], Samples]:
    def samples(state: ReplicaState) -> Samples:
        if key in state.memory.get("host", {}):
            yield (), state.memory["host"][key]

    return samples


def stages(state: ReplicaState) -> Samples:
    for stage, seconds in state.stages.items():
        yield (stage,), seconds


def predicted(state: ReplicaState) -> Samples:
    if state.predicted_s:
        yield (), state.predicted_s


def queue(state: ReplicaState) -> Samples:
    yield (), state.queue


def events(state: ReplicaState) -> Samples:
    for event in EVENTS:
        yield (event,), getattr(state, event)


def moved(key: str) -> Callable[[ReplicaState], Samples]:
    def samples(state: ReplicaState) -> Samples:
        for component, sums in state.moved.items():
            yield (component,), sums[key]

    return samples


def prefetch(state: ReplicaState) -> Samples:
    for component, sums in state.moved.items():
        yield (component, "hit"), sums["prefetched"]
        yield (component, "miss"), sums["on_the_spot"]


def histogram(latency: Latency) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets, as Prometheus wants them, and the sum."""
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    buckets, below = [], 0
    for bound, count in zip(bounds, latency.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets, latency.sum_s
