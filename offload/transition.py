"""From one plan to another in place: which units leave the card, which come, and in what order.

Each has a copy on the card or on the host at every moment, so that any error can be taken back by
a move to the plan that was in force. It knows nothing of requests, nor why the plan changes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import clear_frames

from offload.assembly import Assembly, Progress
from offload.cards.base import Card
from offload.checkpoint import Placement
from offload.errors import StateError
from offload.facts import Budget, ComponentFacts
from offload.host_store import HostStore
from offload.parts import memory_parts
from offload.plan import ComponentPlan, Lifetime, ResidencyPlan
from offload.report import readiness_line
from offload.sizes import format_bytes
from offload.unit import Unit

CHARGE_TO = "another plan"  # the label of these copies among the card's timings


def refuse_other_units(
    former: ResidencyPlan, plan: ResidencyPlan, facts: tuple[ComponentFacts, ...]
) -> None:
    """StateError unless ``plan`` is of the components and units that are attached."""
    theirs, ours = [c.name for c in plan.components], [c.name for c in former.components]
    if sorted(theirs) != sorted(ours):
        raise StateError(
            f"the plan is of {', '.join(theirs) or 'nothing'}, and attached are {', '.join(ours)}: "
            "detach() and attach again to change components"
        )
    for component in facts:
        now, then = _sizes(former[component.name]), _sizes(plan[component.name])
        other = sorted(name for name, _ in now.items() ^ then.items())
        if other:
            raise StateError(
                f"the plan of {component.name} has other units, or of other sizes, than what is "
                f"attached ({', '.join(other[:3])}): plan again from residency.facts"
            )
        units = (component.trunk, *component.layers)
        pinned = {unit.name: unit.pinned_to_card for unit in units if unit.pinned_to_card}
        for unit in plan[component.name].units:
            if unit.name in pinned and unit.lifetime is not Lifetime.PERMANENT:
                raise StateError(
                    f"the plan lends {component.name}.{unit.name}, but {pinned[unit.name]}: plan "
                    "again from residency.facts"
                )


def changes(former: ResidencyPlan, plan: ResidencyPlan) -> Iterator[str]:
    """A line for each component whose residency another plan changed."""
    for component in plan.components:
        was = former[component.name]
        if (was.units, was.policy) == (component.units, component.policy):
            continue
        before, now = was.bytes_with(Lifetime.PERMANENT), component.bytes_with(Lifetime.PERMANENT)
        line = readiness_line(component)
        if before != now:
            line += f"; {format_bytes(now)} of it stay on the card, {format_bytes(before)} before"
        yield line


@contextmanager
def taken_back(undo: Callable[[], None], give_up: Callable[[], None]) -> Iterator[None]:
    """On any error within it ``undo``; if that fails too, ``give_up`` and a StateError of both."""
    try:
        yield
    except BaseException as error:
        clear_frames(error.__traceback__)  # they hold card memory that the former plan needs
        try:
            undo()
        except BaseException as second:
            give_up()
            raise StateError(
                f"another plan could not be applied ({error}), nor the former one taken back "
                f"({second}): the modules are detached, plain and complete; attach them again"
            ) from error
        raise


@dataclass(frozen=True, slots=True)
class _Move:
    """One unit that leaves the card or comes to it."""

    assembly: Assembly
    unit: Unit
    lifetime: Lifetime  # from then on


class Transition:
    """Made for one change; ``run`` moves. Where that raises, each unit is whole where it is."""

    def __init__(
        self, card: Card, store: HostStore, assemblies: Mapping[str, Assembly], budget: Budget
    ) -> None:
        self._card = card
        self._store = store
        self._assemblies = assemblies
        self._budget = budget

    def run(self, plan: ResidencyPlan, progress: Progress) -> None:
        """Leave and come by turns: the card never holds more than the larger of both plans.

        Nor does the host hold a copy of more than what has to leave before the next one fits.
        """
        self._card.synchronize()  # the last request's copies may still read host copies
        moves = list(self._moves(plan))
        leaving = [move for move in moves if move.lifetime is not Lifetime.PERMANENT]
        coming = [move for move in moves if move.lifetime is Lifetime.PERMANENT]
        room = max(0, sum(map(self._bytes, coming)) - sum(map(self._bytes, leaving)))
        count = _Count(moves, progress)
        placement = self._placement(coming)
        try:
            for move in coming:
                while room < self._bytes(move):
                    room += self._bytes(leaving[0])
                    self._leave(leaving[0])
                    count.done(leaving.pop(0))
                self._come(move, placement)
                room -= self._bytes(move)
                count.done(move)
            for move in leaving:
                self._leave(move)
                count.done(move)
        finally:
            placement.finish()
        self._card.empty_cache()  # what is free may be of other sizes than what is needed now
        self._card.take_timings()  # these copies are not the next request's

    def _moves(self, plan: ResidencyPlan) -> Iterator[_Move]:
        for name, assembly in self._assemblies.items():
            lifetimes = {unit.name: unit.lifetime for unit in plan[name].units}
            for unit in assembly.units:
                lifetime = lifetimes[unit.name]
                on_card = unit in assembly.permanent
                if unit.num_bytes and on_card is not (lifetime is Lifetime.PERMANENT):
                    yield _Move(assembly, unit, lifetime)

    def _bytes(self, move: _Move) -> int:
        return self._budget.rounded(move.unit.num_bytes)

    def _placement(self, coming: list[_Move]) -> Placement:
        return Placement(self._card, max((m.unit.num_bytes for m in coming), default=1), CHARGE_TO)

    def _leave(self, move: _Move) -> None:
        """From the card to a host copy; what somebody put in a weight's place comes along."""
        unit, memory = move.unit, move.assembly.permanent[move.unit]
        unit.keep_changes(memory)
        with self._card.reading(unit.name, memory):
            self._store.host(unit, memory_parts(unit, memory))
        unit.lifetime = move.lifetime
        unit.release()
        unit.forget()
        self._card.release(move.assembly.permanent.pop(unit))

    def _come(self, move: _Move, placement: Placement) -> None:
        """From the host copy to the card; it goes once its bytes are known to have landed."""
        unit = move.unit
        assert unit.host is not None
        unit.lifetime = Lifetime.PERMANENT
        parts = memory_parts(unit, unit.host)
        memory = placement.place(unit, move.assembly.label(unit), parts, landed=True)
        move.assembly.permanent[unit] = memory
        move.assembly.origins.doubt([unit])  # it may have been changed while it was lent
        self._store.drop(unit)


class _Count:
    """Tells ``progress`` how many of a component's units have moved."""

    def __init__(self, moves: list[_Move], progress: Progress) -> None:
        self._progress = progress
        self._total = Counter(move.assembly.plan.name for move in moves)
        self._done: Counter[str] = Counter()
        for name, total in self._total.items():
            progress(name, 0, total)

    def done(self, move: _Move) -> None:
        name = move.assembly.plan.name
        self._done[name] += 1
        self._progress(name, self._done[name], self._total[name])


def _sizes(component: ComponentPlan) -> dict[str, int]:
    return {unit.name: unit.num_bytes for unit in component.units}
