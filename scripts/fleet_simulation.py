"""Discrete-event simulation of a fleet: invented cards and requests, the driver's own line.

Who draws what is decided by a policy (``scripts.fleet_policies``). It knows nothing of Ray, torch
or real time.
"""

import heapq
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from deployments.messages import CardState, ReplicaState, State
from deployments.pace import Shape, Speed

USUAL = Shape(pixels=1024 * 1024, steps=20)
SHAPES = (  # what is asked for, the usual most often
    USUAL,
    USUAL,
    Shape(pixels=1024 * 1024, steps=50),
    Shape(pixels=512 * 512, steps=20),
    Shape(pixels=1024 * 1024, steps=20, images=2),
)
KINDS = ((4, "fast"), (2, "middle"), (1, "slow"))  # times as fast as the slowest
SLOWEST = Speed(picture_s=4.0, work_s=0.8)  # 20 s for the usual request
LUCK = 0.1  # spread of a job's true time, whatever is known
MISTAKE = 0.3  # of a plan's prediction, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One invented replica, with its true speed and what its plan predicted."""

    id: str
    kind: str
    speed: Speed
    predicted_s: float

    @property
    def state(self) -> ReplicaState:
        card = CardState(name=self.kind, memory_bytes=0, free_bytes=0, simulated=True)
        return ReplicaState(id=self.id, card=card, state=State.READY, predicted_s=self.predicted_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One invented request; ``luck`` is what its true time differs by, whoever draws it."""

    id: str
    at_s: float
    shape: Shape
    luck: float = 1.0


class Clock:
    """Events in order of their time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), act))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()


Start = Callable[[Job, Card], None]


class Policy(Protocol):
    """Who draws what; ``start`` was given to it and begins a job on a free card."""

    def came(self, job: Job) -> None: ...

    def ended(self, job: Job, card: Card, seconds: float) -> None: ...


Factory = Callable[[Sequence[Card], Clock, Start], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one policy."""

    latencies_s: tuple[float, ...]  # from a request's arrival to its end
    makespan_s: float  # from the first arrival to the last end
    chosen: Counter[str]  # kind of card -> jobs

    def quantile_s(self, percent: int) -> float:
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[percent - 1]


def simulate(cards: Sequence[Card], jobs: Sequence[Job], factory: Factory) -> Run:
    """Every job on some card, one at a time on each."""
    clock, latencies, chosen = Clock(), [], Counter[str]()
    ends_s = [0.0]

    def start(job: Job, card: Card) -> None:
        seconds = card.speed.seconds_of(job.shape) * job.luck
        chosen[card.kind] += 1
        clock.after(seconds, lambda: end(job, card, seconds))

    def end(job: Job, card: Card, seconds: float) -> None:
        latencies.append(clock.now_s - job.at_s)
        ends_s.append(clock.now_s)
        policy.ended(job, card, seconds)

    policy = factory(cards, clock, start)
    for job in jobs:
        clock.after(job.at_s, partial(policy.came, job))
    clock.run()
    makespan_s = max(ends_s) - min(job.at_s for job in jobs)
    return Run(latencies_s=tuple(latencies), makespan_s=makespan_s, chosen=chosen)


def uneven_fleet(num_cards: int, rng: random.Random) -> list[Card]:
    """As many cards of each kind, 4, 2 and 1 times as fast as the slowest."""
    cards = []
    for index in range(num_cards):
        times, kind = KINDS[index % len(KINDS)]
        speed = Speed(picture_s=SLOWEST.picture_s / times, work_s=SLOWEST.work_s / times)
        predicted_s = speed.seconds_of(USUAL) * rng.uniform(1 - MISTAKE, 1 + MISTAKE)
        cards.append(Card(id=f"{kind}-{index}", kind=kind, speed=speed, predicted_s=predicted_s))
    return cards


def poisson_jobs(
    cards: Sequence[Card], load: float, num_jobs: int, rng: random.Random
) -> list[Job]:
    """Requests at random times, as many a second as ``load`` of what the cards can draw."""
    mean_s = [statistics.fmean(c.speed.seconds_of(s) for s in SHAPES) for c in cards]
    rate, at_s, jobs = load * sum(1 / s for s in mean_s), 0.0, []
    for index in range(num_jobs):
        at_s += rng.expovariate(rate)
        luck = rng.uniform(1 - LUCK, 1 + LUCK)
        jobs.append(Job(id=str(index), at_s=at_s, shape=rng.choice(SHAPES), luck=luck))
    return jobs
