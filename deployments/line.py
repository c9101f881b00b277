"""The line of requests that wait for a replica, and who draws now.

Each request is dealt to the replica where it is expected to finish first, and gets its turn once
that one is free; until then it may be dealt again, as what happens differs from what was expected.
It knows nothing of Ray. The driver's and the router's threads both use it, so a lock guards it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from deployments.errors import ReplicaNotFound
from deployments.rank import Candidate, Place, Request, deal, rank

OVERRUN = 0.1  # a job that is overdue is expected to take so much of its time so far again
REDEAL_S = 0.2  # without any news: jobs that take longer than expected are news, too
REFUSED_S = 0.02  # a replica that turned a job away is left alone so long, then twice as long, ...
LONGEST_REFUSED_S = 0.5


@dataclass(slots=True, kw_only=True)
class Ticket:
    """One request on its way."""

    request: Request
    place: Place | None = None  # set once it is its turn
    began_s: float = 0.0
    taken: bool = False  # whether the router was told of the place
    refusals: int = 0  # times that its replica was still occupied
    lost: bool = False  # its one replica is gone
    on_turn: Callable[[], None] = lambda: None


class Line:
    """Requests in order of their arrival."""

    def __init__(
        self,
        candidates: Callable[[], Sequence[Candidate]],
        now: Callable[[], float] = time.monotonic,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """``candidates`` tells the replicas without their lines; ``lock`` can be entered twice."""
        self._candidates = candidates
        self._now = now
        self._lock = lock or threading.RLock()
        self._tickets: dict[str, Ticket] = {}
        self._refused: dict[str, float] = {}  # replica -> until when it is left alone
        self._deal_again_s = now()

    # --- the driver's side -------------------------------------------------------------------
    def open(self, request_id: str, request: Request, *, first: bool = False) -> None:
        """Take a place at the end, or at the front; it may be its turn at once."""
        ticket = Ticket(request=request)
        with self._lock:
            if first:
                self._tickets = {request_id: ticket, **self._tickets}
            else:
                self._tickets[request_id] = ticket
            self.deal()

    def close(self, request_id: str) -> None:
        """However it ended; whoever waits for its replica may have a turn now."""
        with self._lock:
            if self._tickets.pop(request_id, None) is not None:
                self.deal()

    @property
    def num_waiting(self) -> int:
        """Requests whose turn has not come."""
        with self._lock:
            return sum(ticket.place is None for ticket in self._tickets.values())

    def place_of(self, request_id: str) -> str | None:
        """The replica that draws it; None while it waits."""
        with self._lock:
            ticket = self._tickets.get(request_id)
            return ticket.place.id if ticket is not None and ticket.place is not None else None

    def wait_s(self, request_id: str) -> float:
        """Seconds until its turn, as far as can be told; 0 where it has it, or nobody can."""
        with self._lock:
            waiting = self._waiting()
            places = deal(self._loaded(), [ticket.request for ticket in waiting])
            for ticket, place in zip(waiting, places, strict=True):
                if ticket is self._tickets.get(request_id):
                    return place.wait_s if place is not None else 0.0
            return 0.0

    def queues(self) -> dict[str, int]:
        """Replica -> jobs that it runs or that are expected to go there."""
        with self._lock:
            loaded = self._loaded()
            queues = {one.id: one.queue for one in loaded}
            for place in deal(loaded, [ticket.request for ticket in self._waiting()]):
                if place is not None:
                    queues[place.id] += 1
            return queues

    # --- the router's side -------------------------------------------------------------------
    def knows(self, request_id: str) -> bool:
        return request_id in self._tickets

    def take(self, request_id: str, on_turn: Callable[[], None]) -> str | None:
        """The replica whose turn it is to draw this; None: not yet, ``on_turn`` is called then.

        Asked a second time it concludes that the replica did not take the job, and deals again.
        """
        with self._lock:
            ticket = self._tickets.get(request_id)
            if ticket is None:
                return None
            if ticket.taken:
                self._note_refusal(ticket)
                self.deal()
            elif ticket.place is None and self._now() >= self._deal_again_s:
                self.deal()
            if ticket.lost:
                raise ReplicaNotFound(f"the replica {ticket.request.pin!r} is gone or cannot draw")
            ticket.on_turn = on_turn
            ticket.taken = ticket.place is not None
            return ticket.place.id if ticket.place is not None else None

    @property
    def patience_s(self) -> float:
        """Without any news it is worth asking again after so long."""
        return max(0.0, self._deal_again_s - self._now())

    def deal(self) -> None:
        """Give a turn to everyone whose best replica is free."""
        with self._lock:
            now = self._now()
            self._refused = {id_: s for id_, s in self._refused.items() if s > now}
            self._deal_again_s = min([now + REDEAL_S, *self._refused.values()])
            replicas, waiting = self._loaded(), self._waiting()
            for ticket in waiting:
                ticket.lost = bool(replicas) and _has_lost_its_pin(ticket.request, replicas)
                if ticket.lost:
                    ticket.on_turn()
            free = {one.id for one in replicas if not one.queue}
            places = deal(replicas, [ticket.request for ticket in waiting]) if free else iter(())
            for ticket, place in zip(waiting, places, strict=False):
                if place is not None and place.id in free:
                    free.discard(place.id)
                    ticket.place, ticket.began_s = place, now
                    ticket.on_turn()
                if not free:
                    return  # nobody further back can have a turn now

    # --- arithmetic --------------------------------------------------------------------------
    def _note_refusal(self, ticket: Ticket) -> None:
        """The replica is not free yet, whatever was thought: a stopped job ends with its step."""
        if ticket.place is not None:
            pause_s = min(REFUSED_S * 2**ticket.refusals, LONGEST_REFUSED_S)
            self._refused[ticket.place.id] = self._now() + pause_s
        ticket.place, ticket.taken, ticket.refusals = None, False, ticket.refusals + 1

    def _waiting(self) -> list[Ticket]:
        return [ticket for ticket in self._tickets.values() if ticket.place is None]

    def _loaded(self) -> list[Candidate]:
        """The replicas with the jobs that they run now."""
        now, running = self._now(), {}
        for ticket in self._tickets.values():
            if ticket.place is not None:
                running[ticket.place.id] = _left_s(ticket.place.job_s, now - ticket.began_s)
        for id_, until_s in self._refused.items():
            running.setdefault(id_, until_s - now)
        return [
            replace(one, queue=1, queue_s=running[one.id]) if one.id in running else one
            for one in self._candidates()
        ]


def _left_s(job_s: float, elapsed_s: float) -> float:
    return max(job_s - elapsed_s, OVERRUN * elapsed_s)


def _has_lost_its_pin(request: Request, replicas: Sequence[Candidate]) -> bool:
    return request.pin is not None and not rank(replicas, request)
