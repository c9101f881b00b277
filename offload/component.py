"""One component under management: its units, the doors into it, and the pass that is running.

It brings units in the order that the last like pass used them, and whatever was not foreseen on the
spot: the result is always right, only slower. What happens between runs is the residency's.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from offload.compiled import refuse_compiled
from offload.doors import argument_names, door_names, given
from offload.errors import StateError
from offload.history import History, PassKind
from offload.passes import Pass
from offload.plan import ComponentPlan, Lifetime
from offload.report import ComponentUsage
from offload.run import Run
from offload.transfer import Transfer
from offload.unit import Unit
from offload.wrapper import Call, Wrapper


class Owner(Protocol):
    """What a component asks of the residency."""

    transfer: Transfer
    history: History

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

    @property
    def units(self) -> list[Unit]:
        return [self.trunk, *self.layers]

    @property
    def lends(self) -> bool:
        """Whether any unit is ever brought in; a wholly permanent component is only counted."""
        return any(u.lifetime is not Lifetime.PERMANENT and u.num_bytes for u in self.units)

    def follow(self, plan: ComponentPlan) -> None:
        """Take another plan of the same units, permanent ones unchanged; between requests only."""
        lifetimes = {unit.name: unit.lifetime for unit in plan.units}
        for unit in self.units:
            unit.lifetime = lifetimes[unit.name]
        self.plan = plan

    # --- watching ----------------------------------------------------------------------------
    def watch(self) -> None:
        """Guard every door; where something is lent, every layer and leaf of the trunk too."""
        for name in door_names(self.root):
            self._guard_door(self.root, name, name)
        if not self.lends:
            return
        blocks = [unit.module for unit in self.layers if unit.module is not None]
        refuse_compiled(self.name, self.root, blocks)
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

    def _refuse_bypassed(self) -> None:
        for wrapper in self._wrappers:
            if self.lends and wrapper.is_bypassed:
                raise StateError(
                    f"a {type(wrapper.module).__name__} of {self.name} was compiled after attach, "
                    "which hides its calls: compile within residency.suspended()"
                )

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
        if usage.passes == 0:
            self.owner.refresh(self)
        if kind.door != "generate":  # it turns gradients off inside; units look for themselves
            self._refuse_unsafe()
        self._refuse_bypassed()
        self.owner.make_room(self)
        usage.passes += 1
        if self.lends and self.run is None:
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
            bool(history.passes_left(self.name, usage.passes)),
        )
        if self.run is not None:
            for unit in self.run.window.busy:
                if unit not in self.passing.index:  # brought for a pass that did not come
                    self.run.evict(unit)
            self._top_up(self.run, self.passing)

    def _finish(self) -> None:
        passing, history = self.passing, self.owner.history
        self.passing = None
        assert passing is not None
        history.learn(passing.kind, passing.recorder.finished())
        if history.passes_left(self.name, self.owner.usage_of(self.name).passes) == 0:
            self.end_run()  # its last run in a request like this one

    def _new_run(self, usage: ComponentUsage) -> Run:
        plan = self.plan
        return Run(
            self.name,
            self.owner.transfer,
            self.trunk,
            self.units,
            plan.window_bytes,
            plan.window,
            usage,
        )

    def end_run(self) -> None:
        """Give back everything that is not permanent; idempotent."""
        run, self.run, self.passing = self.run, None, None
        if run is not None:
            run.end()

    def refuse_lost_parameters(self) -> None:
        """StateError where the module no longer has the parameters that were attached."""
        present = {id(parameter) for parameter in self.root.parameters()}
        lost = [n for u in self.units for n, p in u.parameters.items() if id(p) not in present]
        if lost:
            raise StateError(
                f"parameters of {self.name} were replaced or removed ({', '.join(lost[:3])}): "
                "detach() before such a change and attach again after it"
            )

    def _refuse_unsafe(self) -> None:
        if not self.lends:
            return
        if self.owner.transfer.card.is_capturing():
            raise StateError(
                f"{self.name} is called while a graph is captured: a replay would not bring its "
                "weights; make it permanent, or capture another component"
            )
        if not torch.is_grad_enabled():
            return
        lent = (u for u in self.units if u.lifetime is not Lifetime.PERMANENT)
        if any(b.parameter.requires_grad for unit in lent for b in unit.bindings):
            raise StateError(
                f"{self.name} is called with gradients enabled while weights of it come and go: "
                "call it under torch.no_grad(), or make it permanent"
            )

    # --- a unit ------------------------------------------------------------------------------
    @contextmanager
    def _using(self, unit: Unit) -> Iterator[None]:
        run, passing = self.run, self.passing
        assert run is not None
        assert passing is not None
        if unit in run.calling:  # it calls itself
            yield
            return
        self._enter(run, passing, unit)
        try:
            with self._reading([unit.memory]):
                yield
        finally:
            run.calling.remove(unit)
            if self.run is run:
                run.left(unit)
                self._top_up(run, passing)

    def _enter(self, run: Run, passing: Pass, unit: Unit) -> None:
        self._refuse_unsafe()
        if not run.has(unit):
            run.bring_on_the_spot(unit)
        elif unit.lifetime is Lifetime.STREAMED and run.window.holds(unit):
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
