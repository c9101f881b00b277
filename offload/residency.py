"""Residency: the one owner of a pipeline's weights on one card, from attach to detach.

It decides by a plan, moves through components, and ends every request with only the permanent
units on the card, whatever happened. Every call comes from the thread that attached it.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import nn

from offload.assembly import Assembly, Progress, silent
from offload.cards import Card, detect_card
from offload.component import Component
from offload.demotion import halved, say_halved
from offload.facts import Budget, ComponentFacts
from offload.guards import disown, own, refuse_owned
from offload.host_store import HostStore
from offload.measuring import measuring
from offload.outside_reads import Found, outside_reads
from offload.pins import renew_pins
from offload.plan import Lifetime, ResidencyPlan
from offload.planner import plan_residency
from offload.probe import Probe
from offload.report import RequestUsage, Snapshot, placement_line, readiness_line
from offload.requests import Requests
from offload.sleep import fall_asleep, read_back, wake_up
from offload.snapshots import take_snapshot
from offload.spec import ResidencySpec
from offload.survey import survey_components
from offload.suspension import keep_changes, open_up, take_back
from offload.transition import Transition, changes, refuse_other_units, taken_back
from offload.turn import Doing, Turn
from offload.watch import Watch
from offload.weights import load_weights, named_weights
from offload.wish import with_known

logger = logging.getLogger("offload")


class Residency:
    """Made by ``attach``; ``detach`` returns plain modules."""

    def __init__(self, card: Card, plan: ResidencyPlan, facts: tuple[ComponentFacts, ...]) -> None:
        self.card = card
        self.facts = facts
        self._turn = Turn()
        self._store = HostStore(card.pinner)
        self._pin_line = ""  # what was last said of it
        self._assemblies: dict[str, Assembly] = {}
        self._components: dict[str, Component] = {}
        self._watch = Watch(self._components, self.suspended)
        self._requests = Requests(card, plan, self._turn, self._components, self._assemblies)
        self.history = self._requests.history

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
        keep_in_trunk: Mapping[str, Collection[str]] | None = None,
        log: Callable[[str], None] = logger.info,
        progress: Progress | None = None,
    ) -> "Residency":
        """Survey, plan, place and watch; on failure the modules are as they were.

        ``activation_bytes`` is the peak beyond weights of a component (or group), ``passes`` its
        calls in a usual request, where they are known. ``keep_in_trunk`` is what ``outside_reads``
        found. A ``plan`` made before is taken as it is; otherwise one is made from ``spec`` here.
        Raises SpecError, DoesNotFitError, StateError, or the card's out-of-memory error.
        """
        modules = dict(modules)
        refuse_owned(modules)
        card = detect_card() if card is None else card
        surveyed = survey_components(modules, keep_in_trunk or {})
        facts = with_known(surveyed, activation_bytes or {}, passes or {})
        if plan is None:
            plan = plan_residency(spec or ResidencySpec(), facts, Budget.of(card.facts()))
        for warning in plan.warnings:
            logger.warning(warning)
        residency = cls(card, plan, facts)
        try:
            residency._take(modules, progress or silent, log)
        except BaseException:
            residency._give_back()
            raise
        return residency

    def _take(
        self, modules: dict[str, nn.Module], progress: Progress, log: Callable[[str], None]
    ) -> None:
        for (name, root), facts in zip(modules.items(), self.facts, strict=True):
            assembly = Assembly.build(root, self.plan[name], self.card.device, facts.kept_in_trunk)
            self._assemblies[name] = assembly
            own(root)
            assembly.place(self.card, self._store, progress)
            component = Component(root, self.plan[name], assembly.units, self._requests)
            self._components[name] = component
            if self.plan[name].bytes_with(Lifetime.PERMANENT):
                log(placement_line(self.plan[name]))
        self._pin(self.plan, log)
        self.card.take_timings()  # the placement's are not the first request's
        self._watch.on()
        for name in modules:
            log(readiness_line(self.plan[name]))

    def _pin(self, plan: ResidencyPlan, log: Callable[[str], None]) -> None:
        before, share = self._pin_line, self.card.pin_share
        self._pin_line = renew_pins(self._store, self._assemblies, plan, self.facts, share)
        if self._pin_line not in ("", before):
            log(self._pin_line)

    def detach(self) -> None:
        """Give back plain, complete modules on the device they came from; nothing of ours stays."""
        if self.asleep:
            self._turn.check_thread()
            read_back(self._store, self._assemblies.values())
            self._turn.doing = Doing.IDLE
        self._turn.check("detach")
        self._give_back()

    def _give_back(self) -> None:
        self._watch.off()
        self.card.synchronize()  # no copy may still read a host copy that is unlocked now
        for assembly in self._assemblies.values():
            assembly.take_apart(self.card, self._store)
            disown(assembly.root)
        self._assemblies.clear()
        self._components.clear()

    # --- requests ----------------------------------------------------------------------------
    @property
    def plan(self) -> ResidencyPlan:
        """The one in force."""
        return self._requests.plan

    @property
    def failed_in(self) -> tuple[str, str]:
        """Component and door of the last request's first error; empty where there was none."""
        return self._requests.failed_in

    def request(self) -> AbstractContextManager[RequestUsage]:
        """One request: bytes moved, seconds stalled and arming, peak bytes, per component.

        However it ends, afterwards only permanent units are on the card and no copy is under way.
        """
        return self._requests.open()

    # --- looking in --------------------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        """The card, the host store and every component, from what is really held."""
        self._turn.check_thread()
        return take_snapshot(self.card, self._store, self._assemblies, self._components)

    def measuring(self, *, source: str = "", live: bool = True) -> AbstractContextManager[Probe]:
        """Around one request; see ``offload.measuring``."""
        self._turn.check("measure")
        return measuring(self.card, self._requests, self._components.values(), source, live)

    def outside_reads(self) -> AbstractContextManager[Found]:
        """Within it, weights that are read outside their layer's call are served and noted."""
        return outside_reads(self._components, self.card.device)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, wherever it is: ("transformer.blocks.0.a.weight", tensor)."""
        self._turn.check_awake("read weights")
        return named_weights(self._assemblies)

    # --- changing weights --------------------------------------------------------------------
    def load_weights(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Overwrite weights by the names of ``iter_weights``, permanent ones too; returns these.

        Each is converted to the dtype it has. SpecError on an unknown name or another shape.
        """
        self._turn.check("load weights")
        return load_weights(self._assemblies, pairs)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Plain modules, in host memory but for the permanent units, to change or save weights.

        Changes of data are kept, in place or not; added parameters (adapters) are placed for good.
        None may be removed or replaced: StateError at the end, and the modules are detached.
        """
        self._turn.check("suspend")
        self._turn.doing = Doing.SUSPENDED
        self._watch.off()
        open_up(self._assemblies.values())
        try:
            yield
        finally:
            self._turn.doing = Doing.IDLE
            try:
                self._resume()
            except BaseException:
                self._give_back()  # plain, complete modules rather than half-managed ones
                raise

    def _resume(self) -> None:
        keep_changes(self._assemblies.values())
        for component in self._components.values():
            self._requests.refresh(component)
        take_back(self._assemblies.values())
        self._watch.on()

    # --- sleep -------------------------------------------------------------------------------
    @property
    def asleep(self) -> bool:
        return self._turn.doing is Doing.ASLEEP

    def sleep(self) -> None:
        """Give the whole card back until ``wake``; every use in between is a StateError.

        Permanent weights are read from their file again, if it still holds them, and kept in host
        memory otherwise, as buffers are. Asleep already: nothing happens.
        """
        self._turn.check_thread()
        if not self.asleep:
            self._turn.check("sleep")
            fall_asleep(self.card, self._store, self._assemblies.values())
            self._watch.asleep()
            self._turn.doing = Doing.ASLEEP

    def wake(self) -> None:
        """Take the card again as it was before ``sleep``. Awake already: nothing happens.

        Raises StateError, naming the file, where a checkpoint was changed meanwhile, or the card's
        out-of-memory error: it is asleep as before then.
        """
        self._turn.check_thread()
        if self.asleep:
            wake_up(self.card, self._store, self._assemblies.values())
            self._turn.doing = Doing.IDLE
            try:
                self._watch.on()
            except BaseException:
                self._give_back()  # plain, complete modules rather than half-managed ones
                raise

    # --- another plan ------------------------------------------------------------------------
    def apply(
        self,
        plan: ResidencyPlan,
        *,
        log: Callable[[str], None] = logger.info,
        progress: Progress | None = None,
    ) -> None:
        """Take another plan of the same units in place, between requests; only what changes moves.

        On any error the former plan is in force again and the error is raised. If that fails too,
        the modules are detached, plain and complete: StateError.
        """
        self._turn.check("apply a plan")
        former = self.plan
        refuse_other_units(former, plan, self.facts)
        self._turn.doing = Doing.APPLYING
        try:
            undo = partial(self._follow, former, silent, logger.info)
            with taken_back(undo, self._give_back):
                self._follow(plan, progress or silent, log)
                for line in changes(former, plan):
                    log(line)
        finally:
            self._turn.doing = Doing.IDLE

    def _follow(self, plan: ResidencyPlan, progress: Progress, log: Callable[[str], None]) -> None:
        self._watch.off()
        transition = Transition(self.card, self._store, self._assemblies, plan.budget)
        transition.run(plan, progress)
        for name, component in self._components.items():
            component.follow(plan[name])
        self._requests.plan = plan
        self._pin(plan, log)
        self._watch.on()

    # --- out of memory -----------------------------------------------------------------------
    def demote(self, component: str | None = None) -> str:
        """After out of memory: halve what is lent to a component while it runs, until detach.

        Without a name, the one in which the last request failed. Returns what was done, in words,
        or "" where there is nothing left to give up. Call it outside the ``except`` block: the
        error's frames hold activations.
        """
        self._turn.check("demote")
        name = component or self.failed_in[0]
        smaller = halved(self.plan, name) if name else None
        if smaller is None:
            return ""
        self._requests.plan = smaller
        self._components[name].follow(smaller[name])
        return say_halved(smaller[name])
