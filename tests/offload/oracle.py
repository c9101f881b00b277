"""The planner's objective once more, from the formulas of the design alone: no code is shared.

Every division of every component is weighed: counts, policies, trunks, gaps held or dropped. Time
is simulated call by call. Sizes are bytes, too small for the gates of forward copies to matter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from offload.facts import ComponentFacts, UnitFacts
from offload.plan import ComponentPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One component in one way: P, F or S for each layer, and for the trunk."""

    lives: str
    trunk: str
    window: int
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What a way costs and holds."""

    standing: int
    lent: int
    through: int  # while others run in its gaps
    seconds: float
    moved: int
    streamed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All components together."""

    peak: int
    seconds: float
    moved: int
    streamed: int


def ways(facts: ComponentFacts, window: int = 2) -> Iterator[Way]:
    """Layers that are not used stay streamed; the others are counted in order."""
    used = [i for i, unit in enumerate(facts.layers) if unit.uses]
    n = len(used)
    for num_streamed in range(n + 1):
        leading = set(range(n - num_streamed, n))
        spread = {(i + 1) * n // num_streamed - 1 for i in range(num_streamed)}
        for streamed in (leading, spread):
            resident = [used[i] for i in range(n) if i not in streamed]
            for num_permanent in range(len(resident) + 1):
                lives = ["S"] * len(facts.layers)
                for i, layer in enumerate(resident):
                    lives[layer] = "P" if i < num_permanent else "F"
                for trunk, held in product("P" if num_permanent else "PF", (True, False)):
                    yield Way(lives="".join(lives), trunk=trunk, window=window, held=held)


def way_of(plan: ComponentPlan) -> Way:
    letters = "".join(unit.lifetime.value[0].upper() for unit in plan.units)
    return Way(lives=letters[1:], trunk=letters[0], window=plan.window, held=plan.held_through_gaps)


# --- bytes -------------------------------------------------------------------------------------
def weigh(facts: ComponentFacts, way: Way, bytes_per_s: float) -> Weight:
    used = [(u, life) for u, life in zip(facts.layers, way.lives, strict=True) if u.uses]
    moving = [u.num_bytes for u, life in used if life == "S"]
    window = max(
        (sum(moving[i : i + way.window]) for i in range(max(1, len(moving) - way.window + 1))),
        default=0,
    )
    everything = [(facts.trunk, way.trunk), *zip(facts.layers, way.lives, strict=True)]
    forward = sum(unit.num_bytes for unit, life in everything if life == "F")
    runs = passes_of_runs(facts, way)
    again = len(moving) > way.window
    moved = len(runs) * forward
    for unit, life in used:
        if life == "S":
            moved += unit.num_bytes * (facts.passes * unit.uses if again else len(runs))
    seconds = 0.0
    for number, passes in enumerate(runs):
        seconds += run_s(facts, way, passes, bytes_per_s, begins=number == 0)
    return Weight(
        standing=sum(u.num_bytes for u, life in everything if life == "P") + facts.buffer_bytes,
        lent=forward + window,
        through=forward + window if way.held else 0,
        seconds=seconds,
        moved=moved,
        streamed=sum(moving),
    )


def together(facts: Sequence[ComponentFacts], weights: Sequence[Weight]) -> Whole:
    """While one runs: all that stands, its own, and what others hold through its run."""
    running = [0]
    for one, own in zip(facts, weights, strict=True):
        through = sum(
            weight.through
            for other, weight in zip(facts, weights, strict=True)
            if other is not one and any(one.name in gap for gap in other.gaps)
        )
        running.append(own.lent + through + one.activation_bytes)
    return Whole(
        peak=sum(weight.standing for weight in weights) + max(running),
        seconds=sum(weight.seconds for weight in weights),
        moved=sum(weight.moved for weight in weights),
        streamed=sum(weight.streamed for weight in weights),
    )


# --- seconds -----------------------------------------------------------------------------------
def passes_of_runs(facts: ComponentFacts, way: Way) -> list[int]:
    """Passes of each run, as even as they can be; one run where it is held through its gaps."""
    num_runs = 1 if way.held else min(1 + len(facts.gaps), facts.passes)
    return [len(range(i, facts.passes, num_runs)) for i in range(num_runs)]


def call_s(unit: UnitFacts, *, first: bool) -> float:
    return unit.first_s if first and unit.first_s is not None else unit.compute_s


def run_s(
    facts: ComponentFacts, way: Way, passes: int, bytes_per_s: float, *, begins: bool
) -> float:
    """One run, call by call: a link, a computation, and a queue of copies in order of need."""
    calls: list[tuple[float, int | None, float]] = []  # seconds, the copy it waits for
    copies: list[tuple[str, float]] = []  # life and seconds, in order of need
    again = sum(u.uses > 0 and life == "S" for u, life in zip(facts.layers, way.lives, strict=True))
    for number in range(passes):
        first = begins and number == 0
        calls.append((call_s(facts.trunk, first=first), None, 0.0))
        for turn in range(max((unit.uses for unit in facts.layers), default=0)):
            for unit, life in zip(facts.layers, way.lives, strict=True):
                if unit.uses <= turn:
                    continue
                needed = None
                fresh = number == turn == 0
                if life != "P" and (fresh or (life == "S" and again > way.window)):
                    needed = len(copies)
                    copies.append((life, unit.num_bytes / bytes_per_s))
                leaves = 1.0 if life == "S" and needed is not None else 0.0
                calls.append((call_s(unit, first=first), needed, leaves))
    return _simulated(calls, copies, way, facts.trunk.num_bytes / bytes_per_s)


def _simulated(
    calls: Sequence[tuple[float, int | None, float]],
    copies: Sequence[tuple[str, float]],
    way: Way,
    trunk_s: float,
) -> float:
    link_s = now_s = trunk_s if way.trunk == "F" else 0.0
    there: dict[int, float] = {}
    waiting = list(range(len(copies)))
    exits: list[float] = []
    num_sent = 0

    def send() -> None:
        nonlocal link_s, num_sent
        while waiting:
            sendable = [
                i for i in waiting if copies[i][0] == "F" or num_sent - len(exits) < way.window
            ]
            # Only the next streamed copy may go, and only a forward one may overtake it.
            streamed = next((i for i in waiting if copies[i][0] == "S"), None)
            sendable = [i for i in sendable if copies[i][0] == "F" or i == streamed]
            if not sendable:
                return
            one = sendable[0]
            waiting.remove(one)
            if copies[one][0] == "S":
                if num_sent >= way.window:
                    link_s = max(link_s, exits[num_sent - way.window])
                num_sent += 1
            link_s += copies[one][1]
            there[one] = link_s

    send()
    for seconds, needed, leaves in calls:
        if needed is not None:
            now_s = max(now_s, there[needed])
        now_s += seconds
        if leaves:
            exits.append(now_s)
            send()
    return now_s


# --- the best of all plans -----------------------------------------------------------------------
def every_whole(
    facts: Sequence[ComponentFacts], num_bytes: int, bytes_per_s: float, window: int = 2
) -> list[Whole]:
    """Every combination that fits."""
    weights = [
        list(dict.fromkeys(weigh(one, way, bytes_per_s) for way in set(ways(one, window))))
        for one in facts
    ]
    wholes = (together(facts, picks) for picks in product(*weights))
    return [whole for whole in wholes if whole.peak <= num_bytes]
