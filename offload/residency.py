"""Residency: the one owner of a pipeline's weights on one card, from attach to detach.

It decides by a plan, moves through components, and ends every request with only the permanent
units on the card, whatever happened. Every call comes from the thread that attached it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import nn

from offload.assembly import Assembly, Progress
from offload.cards import Card, detect_card
from offload.component import Component
from offload.demotion import halved, say_halved
from offload.errors import StateError
from offload.facts import Budget, ComponentFacts
from offload.guards import Guards, disown, own, refuse_other_offloaders, refuse_owned
from offload.history import History
from offload.host_store import HostStore
from offload.plan import Lifetime, ResidencyPlan
from offload.planner import plan_residency
from offload.report import ComponentUsage, RequestUsage, Snapshot, placement_line, readiness_line
from offload.room import runs_to_end
from offload.sizes import format_bytes
from offload.snapshots import take_snapshot
from offload.spec import ResidencySpec
from offload.survey import survey_component
from offload.suspension import keep_changes, open_up, take_back
from offload.transfer import Transfer
from offload.unit import Unit
from offload.weights import load_weights, named_weights
from offload.wish import with_known

logger = logging.getLogger("offload")


class Residency:
    """Made by ``attach``; ``detach`` returns plain modules."""

    def __init__(self, card: Card, plan: ResidencyPlan, facts: tuple[ComponentFacts, ...]) -> None:
        self.card = card
        self.plan = plan
        self.facts = facts
        self.transfer = Transfer(card)
        self.history = History()
        self._thread = threading.get_ident()
        self._simulated = card.facts().simulated
        self._store = HostStore(card.pinner)
        self._assemblies: dict[str, Assembly] = {}
        self._components: dict[str, Component] = {}
        self._guards: list[Guards] = []
        self._request: RequestUsage | None = None
        self._recent: list[Component] = []  # with an open run, least recently used first
        self._suspended = False
        self.failed_in = ""  # the component in which the last request's first error arose

    # --- attach and detach -------------------------------------------------------------------
    @classmethod
    def attach(
        cls,
        modules: Mapping[str, nn.Module],
        *,
        card: Card | None = None,
        spec: ResidencySpec | None = None,
        plan: ResidencyPlan | None = None,
        activation_bytes: Mapping[str, int] | None = None,
        passes: Mapping[str, int] | None = None,
        log: Callable[[str], None] = logger.info,
        progress: Progress | None = None,
    ) -> "Residency":
        """Survey, plan, place and watch; on failure the modules are as they were.

        ``activation_bytes`` is the peak beyond weights of a component (or group), ``passes`` its
        calls in a usual request, where they are known. A ``plan``
        made before is taken as it is; otherwise one is made from ``spec`` for this card.
        Raises SpecError, DoesNotFitError, StateError, or the card's out-of-memory error.
        """
        modules = dict(modules)
        refuse_owned(modules)
        card = detect_card() if card is None else card
        facts = with_known(
            (survey_component(module, name) for name, module in modules.items()),
            activation_bytes or {},
            passes or {},
        )
        if plan is None:
            plan = plan_residency(spec or ResidencySpec(), facts, Budget.of(card.facts()))
        for warning in plan.warnings:
            logger.warning(warning)
        residency = cls(card, plan, facts)
        try:
            residency._take(modules, progress or (lambda component, done, total: None), log)
        except BaseException:
            residency._give_back()
            raise
        return residency

    def _take(
        self, modules: dict[str, nn.Module], progress: Progress, log: Callable[[str], None]
    ) -> None:
        for name, root in modules.items():
            assembly = Assembly.build(root, self.plan[name], self.card.device)
            self._assemblies[name] = assembly
            own(root)
            assembly.place(self.card, self._store, progress)
            self._components[name] = Component(root, self.plan[name], assembly.units, self)
            if self.plan[name].bytes_with(Lifetime.PERMANENT):
                log(placement_line(self.plan[name]))
        self.card.take_timings()  # the placement's are not the first request's
        self._watch()
        for name in modules:
            log(readiness_line(self.plan[name]))

    def detach(self) -> None:
        """Give back plain, complete modules on the device they came from; nothing of ours stays."""
        self._refuse_busy("detach")
        self._give_back()

    def _give_back(self) -> None:
        self._unwatch()
        self.card.synchronize()  # no copy may still read a host copy that is unlocked now
        for assembly in self._assemblies.values():
            assembly.take_apart(self.card, self._store)
            disown(assembly.root)
        self._assemblies.clear()
        self._components.clear()
        self._recent.clear()

    def _watch(self) -> None:
        for component in self._components.values():
            component.watch()
            self._guards.append(
                Guards(component.name, component.root, self.card.device, lends=component.lends)
            )

    def _unwatch(self) -> None:
        while self._guards:
            self._guards.pop().remove()
        for component in self._components.values():
            component.unwatch()

    # --- requests ----------------------------------------------------------------------------
    @contextmanager
    def request(self) -> Iterator[RequestUsage]:
        """One request: bytes moved, seconds stalled and arming, peak bytes, per component.

        However it ends, afterwards only permanent units are on the card and no copy is under way.
        """
        self._refuse_busy("begin a request")
        usage = self._request = RequestUsage()
        self.failed_in = ""
        self.card.reset_peak()
        began_s = time.perf_counter()
        finished = False
        try:
            yield usage
            finished = True
        finally:
            try:
                self._end_runs()
            finally:
                self._request = None
                self._settle(usage, began_s)
        if finished:
            self.history.learn_request({name: u.passes for name, u in usage.components.items()})

    def _end_runs(self) -> None:
        self._recent.clear()
        with ExitStack() as ending:  # each run is ended, whatever ending another one raises
            for component in self._components.values():
                ending.callback(component.end_run)

    def _settle(self, usage: RequestUsage, began_s: float) -> None:
        for name, timing in self.card.take_timings().items():
            component = usage.components.setdefault(name, ComponentUsage())
            component.stall_s += timing.stall_s
            component.arming_s += timing.copy_s
        usage.peak_bytes = self.card.usage().peak_bytes
        usage.seconds = time.perf_counter() - began_s

    # --- what components ask -----------------------------------------------------------------
    def check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise StateError(
                f"thread {threading.current_thread().name} uses a residency that another thread "
                "attached: stream and grad mode are per thread; attach, call and detach on one"
            )

    def scope(self) -> AbstractContextManager[object]:
        """The running request, or one for this call alone."""
        return nullcontext() if self._request is not None else self.request()

    def failed(self, component: str) -> None:
        """A pass of this component ended in an error; the first of a request counts."""
        self.failed_in = self.failed_in or component

    def usage_of(self, component: str) -> ComponentUsage:
        assert self._request is not None
        return self._request.components.setdefault(component, ComponentUsage())

    def refresh(self, component: Component) -> None:
        """Adapters that were added unannounced are placed; what cannot work is refused."""
        refuse_other_offloaders(component.name, component.root)
        component.refuse_lost_parameters()
        added = self._assemblies[component.name].adopt(self.card)
        if added:
            size = format_bytes(added)
            logger.info(f"{component.name}: {size} added since attach stay on the card")

    def make_room(self, component: Component) -> None:
        """End other components' runs, least recently used first, until this one's fits."""
        others = [c for c in self._recent if c is not component and c.run is not None]
        adopted = sum(assembly.adopted_bytes for assembly in self._assemblies.values())
        unknown = not self._simulated and component.plan.activation_bytes == 0
        for other in runs_to_end(self.plan, component, others, adopted, unknown=unknown):
            other.end_run()
        self._recent = [*(c for c in others if c.run is not None), component]

    # --- looking in --------------------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        """The card, the host store and every component, from what is really held."""
        self.check_thread()
        return take_snapshot(self.card, self._store, self._assemblies, self._components)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, wherever it is: ("transformer.blocks.0.a.weight", tensor)."""
        self.check_thread()
        return named_weights(self._assemblies)

    # --- changing weights --------------------------------------------------------------------
    def load_weights(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Overwrite weights by the names of ``iter_weights``, permanent ones too; returns these.

        Each is converted to the dtype it has. SpecError on an unknown name or another shape.
        """
        self._refuse_busy("load weights")
        return load_weights(self._assemblies, pairs)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Plain modules, in host memory but for the permanent units, to change or save weights.

        Changes of data are kept, in place or not; added parameters (adapters) are placed for good.
        None may be removed or replaced: StateError at the end, and the modules are detached.
        """
        self._refuse_busy("suspend")
        self._suspended = True
        self._unwatch()
        open_up(self._units())
        try:
            yield
        finally:
            self._suspended = False
            try:
                self._resume()
            except BaseException:
                self._give_back()  # plain, complete modules rather than half-managed ones
                raise

    def _resume(self) -> None:
        units = self._units()
        keep_changes(units)
        for component in self._components.values():
            self.refresh(component)
        take_back(units)
        self._watch()

    def _units(self) -> list[Unit]:
        return [unit for assembly in self._assemblies.values() for unit in assembly.all_units]

    # --- out of memory -----------------------------------------------------------------------
    def demote(self, component: str | None = None) -> str:
        """After out of memory: halve what is lent to a component while it runs, until detach.

        Without a name, the one in which the last request failed. Returns what was done, in words,
        or "" where there is nothing left to give up. Call it outside the ``except`` block: the
        error's frames hold activations.
        """
        self._refuse_busy("demote")
        name = component or self.failed_in
        smaller = halved(self.plan, name) if name else None
        if smaller is None:
            return ""
        self.plan = smaller
        self._components[name].follow(smaller[name])
        return say_halved(smaller[name])

    def _refuse_busy(self, verb: str) -> None:
        self.check_thread()
        if self._request is not None:
            raise StateError(f"cannot {verb} while a request is running: a card runs one at a time")
        if self._suspended:
            raise StateError(f"cannot {verb} within suspended(): leave it first")
