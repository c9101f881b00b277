"""The requests of one residency: the one that runs, whose runs are open in it, what was learnt.

Components ask it for everything that lies beyond their own module. It decides nothing: the plan
is handed to it, and the residency says when another one holds.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from offload.assembly import Assembly
from offload.cards import Card
from offload.component import Component
from offload.guards import refuse_other_offloaders
from offload.history import History
from offload.listener import Listener
from offload.plan import ResidencyPlan
from offload.refusals import refuse_lost
from offload.report import ComponentUsage, RequestUsage
from offload.room import runs_to_end
from offload.settling import settle
from offload.transfer import Transfer
from offload.turn import Doing, Turn


class Requests:
    """One at a time; made with the residency, whose components and assemblies it looks at."""

    def __init__(
        self,
        card: Card,
        plan: ResidencyPlan,
        turn: Turn,
        components: Mapping[str, Component],
        assemblies: Mapping[str, Assembly],
    ) -> None:
        self.plan = plan  # the one in force
        self.transfer = Transfer(card)
        self.history = History()
        self.listener = Listener()  # nobody, but for whoever measures a request
        self.failed_in = ("", "")  # component and door of the last request's first error
        self._card = card
        self._simulated = card.facts().simulated
        self._turn = turn
        self._components = components
        self._assemblies = assemblies
        self._usage: RequestUsage | None = None
        self._sequence: list[str] = []  # of its passes, as they began: the components
        self._recent: list[Component] = []  # with an open run, least recently used first

    @contextmanager
    def open(self) -> Iterator[RequestUsage]:
        """One request; however it ends, every run of it has ended then."""
        self._turn.check("begin a request")
        self._turn.doing = Doing.REQUEST
        usage = self._usage = RequestUsage()
        self.failed_in, self._sequence = ("", ""), []
        self._card.reset_peak()
        self.listener.request_begins(usage)
        began_s = time.perf_counter()
        finished = False
        try:
            yield usage
            finished = True
        finally:
            try:
                self._end_runs()
            finally:
                self._usage, self._turn.doing = None, Doing.IDLE
                settle(self._card, usage, time.perf_counter() - began_s)
                self.listener.request_is_over(finished=finished)
        if finished:
            self.history.learn_request(self._sequence)

    def _end_runs(self) -> None:
        self._recent.clear()
        with ExitStack() as ending:  # each run is ended, whatever ending another one raises
            for component in self._components.values():
                ending.callback(component.end_run)

    # --- what components ask -----------------------------------------------------------------
    def check_thread(self) -> None:
        self._turn.check_thread()

    def scope(self) -> AbstractContextManager[object]:
        """The running request, or one for this call alone."""
        return nullcontext() if self._usage is not None else self.open()

    def failed(self, component: str, door: str) -> None:
        """A pass of this component ended in an error; the first of a request counts."""
        self.failed_in = self.failed_in if self.failed_in[0] else (component, door)
        self.listener.pass_fails(component)

    def usage_of(self, component: str) -> ComponentUsage:
        assert self._usage is not None
        return self._usage.components.setdefault(component, ComponentUsage())

    def refresh(self, component: Component) -> None:
        """Adapters that were added unannounced are placed; what cannot work is refused."""
        refuse_other_offloaders(component.name, component.root)
        refuse_lost(component.name, component.root, component.units)
        self._assemblies[component.name].adopt(self._card)

    def make_room(self, component: Component) -> None:
        """A pass begins: end other runs that a gap drops, and the oldest until this one fits."""
        self._sequence.append(component.name)
        others = [c for c in self._recent if c is not component and c.run is not None]
        adopted = sum(assembly.adopted_bytes for assembly in self._assemblies.values())
        unknown = not self._simulated and component.plan.activation_bytes == 0
        for other in runs_to_end(self.plan, component, others, adopted, unknown=unknown):
            other.end_run()
        self._recent = [*(c for c in others if c.run is not None), component]
