"""One component under management: its units, the doors into it, and the pass that is running.

It brings units in the order that the last like pass used them, and whatever was not foreseen on the
spot: the result is always right, only slower. What happens between runs is the residency's.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from offload.compiled import refuse_compiled, shows_blocks
from offload.doors import argument_names, door_names, given
from offload.history import History, PassKind
from offload.listener import Listener
from offload.passes import Pass
from offload.plan import ComponentPlan, Lifetime
from offload.refusals import refuse_bypassed, refuse_unsafe
from offload.report import ComponentUsage
from offload.run import Run
from offload.transfer import Transfer
from offload.unit import Unit
from offload.wrapper import Call, Wrapper


class Owner(Protocol):
    """What a component asks of the residency."""

    transfer: Transfer
    history: History
    listener: Listener

    def check_thread(self) -> None: ...

    def scope(self) -> AbstractContextManager[object]:
        """The request in which a call happens: the running one, or one of its own."""

    def refresh(self, component: "Component") -> None:
        """Look at what others did to the module since the last request."""

    def make_room(self, component: "Component") -> None: ...

    def failed(self, component: str, door: str) -> None: ...

    def usage_of(self, component: str) -> ComponentUsage: ...


class Component:
    """Hooks are put on by ``watch`` and taken off by ``unwatch``."""

    def __init__(
        self, root: nn.Module, plan: ComponentPlan, units: list[Unit], owner: Owner
    ) -> None:
        self.name = plan.name
        self.root = root
        self.plan = plan
        self.trunk, *self.layers = units
        self.owner = owner
        self.run: Run | None = None
        self.passing: Pass | None = None
        self._by_name = {unit.name: unit for unit in self.layers}
        self._wrappers: list[Wrapper] = []
        self._sees_units = False  # although nothing is lent

    @property
    def units(self) -> list[Unit]:
        return [self.trunk, *self.layers]

    @property
    def lends(self) -> bool:
        """Whether any unit is ever brought in; a wholly permanent component is only counted."""
        return any(u.lifetime is not Lifetime.PERMANENT and u.num_bytes for u in self.units)

    def follow(self, plan: ComponentPlan) -> None:
        """Take another plan of the same units, each where that plan wants it by now."""
        lifetimes = {unit.name: unit.lifetime for unit in plan.units}
        for unit in self.units:
            unit.lifetime = lifetimes[unit.name]
        self.plan = plan

    # --- watching ----------------------------------------------------------------------------
    def watch(self) -> None:
        """Guard every door; where something is lent, every layer and leaf of the trunk too."""
        for name in door_names(self.root):
            self._guard_door(self.root, name, name)
        if self.lends:
            refuse_compiled(self.name, self.root, self._blocks)
            self._watch_inside()

    @property
    def _blocks(self) -> list[nn.Module]:
        return [unit.module for unit in self.layers if unit.module is not None]

    @contextmanager
    def watched_closely(self) -> Iterator[bool]:
        """Where nothing is lent, layers are seen too within it; False: they are compiled away."""
        if self.lends or not shows_blocks(self.root, self._blocks):
            yield self.lends
            return
        doors = len(self._wrappers)
        self._watch_inside()
        inside = self._wrappers[doors:]
        self._sees_units = True
        try:
            yield True
        finally:
            self._sees_units = False
            for wrapper in reversed([w for w in inside if w in self._wrappers]):  # else off by now
                self._wrappers.remove(wrapper)
                wrapper.remove()

    def _watch_inside(self) -> None:
        inside: set[int] = {id(self.root)}
        for unit in self.layers:
            if unit.module is not None:
                self._guard_unit(unit, unit.module)
                inside.update(id(module) for module in unit.module.modules())
        for path, module in self.root.named_modules():
            if (
                id(module) not in inside
                and next(module.parameters(recurse=False), None) is not None
            ):
                self._guard_door(module, "forward", path)

    def unwatch(self) -> None:
        while self._wrappers:
            self._wrappers.pop().remove()

    def _guard_door(self, module: nn.Module, method: str, door: str) -> None:
        names = argument_names(getattr(module, method))

        def around(call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            self.owner.check_thread()
            if self.passing is not None:
                return call(*args, **kwargs)
            with self._pass(door, given(names, args, kwargs)):
                return call(*args, **kwargs)

        self._wrappers.append(Wrapper(module, method, around))

    def _guard_unit(self, unit: Unit, module: nn.Module) -> None:
        def around(call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            self.owner.check_thread()
            if self.passing is None:  # reached around every door
                with self._pass(unit.name, ()), self._using(unit):
                    return call(*args, **kwargs)
            with self._using(unit):
                return call(*args, **kwargs)

        self._wrappers.append(Wrapper(module, "forward", around, innermost=True))

    # --- a pass ------------------------------------------------------------------------------
    @contextmanager
    def _pass(self, door: str, arguments: tuple[str, ...]) -> Iterator[None]:
        kind = PassKind(self.name, door, arguments)
        with self.owner.scope():
            try:
                self._begin(kind)
                with self._reading(self._standing()):
                    yield
            except BaseException:
                self.passing = None  # it teaches nothing
                self.owner.failed(self.name, door)
                raise
            self._finish()

    def _begin(self, kind: PassKind) -> None:
        history, usage = self.owner.history, self.owner.usage_of(self.name)
        self.owner.listener.pass_comes(self.name)
        if usage.passes == 0:
            self.owner.refresh(self)
        if kind.door != "generate":  # it turns gradients off inside; units look for themselves
            self._refuse_unsafe()
        if self.lends:
            refuse_bypassed(self.name, self._wrappers)
        self.owner.make_room(self)
        usage.passes += 1
        if self.run is None and (self.lends or self._sees_units):
            run = self._new_run(usage)
            run.begin()
            self.run = run
        order = [
            self._by_name[n] for n in history.order(kind, list(self._by_name)) if n in self._by_name
        ]
        self.passing = Pass(
            kind,
            order,
            {unit: history.expected_uses(kind, unit.name) for unit in order},
            bool(history.passes_left(self.name, usage.passes))
            and not self._is_dropped_after(usage.passes),
        )
        if self.run is not None:
            for unit in self.run.window.busy:
                if unit not in self.passing.index:  # brought for a pass that did not come
                    self.run.evict(unit)
            self._top_up(self.run, self.passing)
        self.owner.listener.pass_begins(self.name)

    def _finish(self) -> None:
        passing, history = self.passing, self.owner.history
        self.passing = None
        assert passing is not None
        self.owner.listener.pass_ends(self.name)
        if self.lends or self._sees_units:  # else no call of a unit was noticed
            history.learn(passing.kind, passing.recorder.finished())
        done = self.owner.usage_of(self.name).passes
        if history.passes_left(self.name, done) == 0 or self._is_dropped_after(done):
            self.end_run()  # its last run in a request like this one, or the last before a gap
        self.owner.listener.pass_is_over(self.name)

    def _is_dropped_after(self, passes: int) -> bool:
        """Whether a gap follows that many passes, as it did last time, and the plan drops it."""
        if self.plan.held_through_gaps:
            return False
        return self.owner.history.gap_after(self.name, passes)

    def _new_run(self, usage: ComponentUsage) -> Run:
        ring = (self.plan.window_bytes, self.plan.window)
        return Run(self.name, self.owner.transfer, self.trunk, self.units, *ring, usage)

    def end_run(self) -> None:
        """Give back everything that is not permanent; idempotent."""
        run, self.run, self.passing = self.run, None, None
        if run is not None:
            run.end()

    def _refuse_unsafe(self) -> None:
        if self.lends:
            refuse_unsafe(self.name, self.units, self.owner.transfer.card)

    # --- a unit ------------------------------------------------------------------------------
    @contextmanager
    def _using(self, unit: Unit) -> Iterator[None]:
        run, passing = self.run, self.passing
        assert run is not None
        assert passing is not None
        if unit in run.calling:  # it calls itself
            yield
            return
        listener = self.owner.listener
        listener.unit_comes()
        self._enter(run, passing, unit)
        listener.unit_begins(unit.name)
        try:
            with self._reading([unit.memory]):
                yield
        finally:
            listener.unit_ends()
            run.calling.remove(unit)
            if self.run is run:
                run.left(unit)
                self._top_up(run, passing)
            listener.unit_is_over()

    def _enter(self, run: Run, passing: Pass, unit: Unit) -> None:
        self._refuse_unsafe()
        if not run.has(unit):
            run.bring_on_the_spot(unit)
        else:
            run.usage.prefetched += unit in run.fresh
            if unit.lifetime is Lifetime.STREAMED and run.window.holds(unit):
                run.window.reuse(unit)
        run.arrive(unit)
        run.calling.add(unit)
        run.fresh.discard(unit)
        self.owner.transfer.entered(unit)
        passing.entered(unit)
        self._top_up(run, passing)

    def _top_up(self, run: Run, passing: Pass) -> None:
        """Issue what comes next, in order; a forward unit may overtake a waiting streamed one."""
        blocked = False
        for distance, unit in passing.upcoming():
            if run.has(unit):
                continue
            near = distance <= passing.lookahead
            if unit.lifetime is Lifetime.FORWARD:
                if not near:
                    return
                gate = passing.gate_before(distance)
                event = None if gate is None else self.owner.transfer.gate_of(gate)
                run.bring(unit, [] if event is None else [event])
            elif not blocked:
                blocked = not run.bring(unit, [])
            if blocked and not near:
                return

    # --- for the order checker ---------------------------------------------------------------
    def _standing(self) -> list[torch.Tensor | None]:
        """What is read all through a pass: the trunk, and all units where no layer is watched."""
        return [self.trunk.memory] if self.lends else [unit.memory for unit in self.units]

    def _reading(self, memories: list[torch.Tensor | None]) -> AbstractContextManager[None]:
        card = self.owner.transfer.card
        return card.reading(self.name, *(memory for memory in memories if memory is not None))
