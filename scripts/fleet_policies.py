"""Who draws what in a simulated fleet: Tenure's line, or Ray Serve's power of two choices.

Tenure's is the code that serves, ``deployments.line`` and ``rank``, on the simulation's clock.
Ray's is written anew after Serve 2.60: its routing tasks, their pauses, first in first out.
"""

import random
from collections import deque
from collections.abc import Sequence

from deployments.forecast import Forecast
from deployments.line import Line
from deployments.pace import Shape
from deployments.rank import Candidate, Request
from scripts.fleet_simulation import Card, Clock, Job, Start

# Ray Serve's defaults for a routing task that found both of its choices occupied.
BACKOFF_S, BACKOFF_FACTOR, LONGEST_BACKOFF_S, MOST_TASKS = 0.025, 2, 0.5, 50


class ByRank:
    """Tenure's: the line, dealt by ``rank``, with speeds learnt from the jobs that ended."""

    def __init__(self, cards: Sequence[Card], usual: Shape, clock: Clock, start: Start) -> None:
        self._cards = {card.id: card for card in cards}
        self._states = {card.id: card.state for card in cards}
        self._clock, self._start = clock, start
        self._forecast = Forecast()
        self._forecast.expect(usual)
        self._known = {id_: self._forecast.candidate(one) for id_, one in self._states.items()}
        self._line = Line(self._candidates, lambda: clock.now_s)

    def _candidates(self) -> list[Candidate]:
        return list(self._known.values())

    def came(self, job: Job) -> None:
        self._line.open(job.id, Request(shape=job.shape))
        self._look(job)

    def _look(self, job: Job) -> None:
        """What the router does for each request: take its turn, or wait for news and ask again."""
        asked: list[bool] = []

        def on_turn() -> None:
            if not asked:
                asked.append(True)
                self._clock.after(0.0, lambda: self._look(job))

        taken = self._line.take(job.id, on_turn)
        if taken is not None:
            self._start(job, self._cards[taken])
        elif not asked:
            self._clock.after(self._line.patience_s + 0.001, on_turn)

    def ended(self, job: Job, card: Card, seconds: float) -> None:
        state = self._states[card.id]
        self._forecast.job_ended(state, job.shape, seconds)
        self._known[card.id] = self._forecast.candidate(state)
        self._line.close(job.id)


class PowerOfTwo:
    """Ray Serve's default: each waiting request looks at two cards picked at random, in turn."""

    def __init__(
        self, cards: Sequence[Card], rng: random.Random, clock: Clock, start: Start
    ) -> None:
        self._cards, self._rng, self._clock, self._start = list(cards), rng, clock, start
        self._busy: set[str] = set()
        self._to_route: deque[Job] = deque()
        self._waiting: dict[str, Job] = {}  # in order of arrival
        self._tasks = 0

    def came(self, job: Job) -> None:
        self._to_route.append(job)
        self._waiting[job.id] = job
        self._more_tasks()

    def ended(self, job: Job, card: Card, seconds: float) -> None:
        self._busy.discard(card.id)

    def _more_tasks(self) -> None:
        most = min(MOST_TASKS, 2 * len(self._cards), len(self._waiting))
        while self._tasks < most and self._to_route:
            self._tasks += 1
            self._try(self._to_route.popleft(), 0)

    def _try(self, job: Job, attempt: int) -> None:
        """A routing task; whoever finds a free card gives it to the oldest request."""
        if job.id not in self._waiting:
            self._next_task()
            return
        free = [c for c in self._rng.sample(self._cards, 2) if c.id not in self._busy]
        if free:
            self._busy.add(free[0].id)
            oldest = next(iter(self._waiting))
            self._start(self._waiting.pop(oldest), free[0])
            if oldest == job.id:
                self._next_task()
                return
        backoff_s = min(BACKOFF_S * BACKOFF_FACTOR ** (attempt - 1), LONGEST_BACKOFF_S)
        pause_s = backoff_s if attempt else 0.0  # the first second look comes at once
        self._clock.after(pause_s, lambda: self._try(job, attempt + 1))

    def _next_task(self) -> None:
        self._tasks -= 1
        self._more_tasks()
