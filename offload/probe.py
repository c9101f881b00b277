"""Measures one request: whose seconds, whose calls, what lived beside the weights, how fast copies.

It listens to the components and asks the card; it knows neither plans nor modules. The host waits
for the card only when it is asked for the result, after the request.
"""

from collections.abc import Mapping

from offload.cards.base import Card
from offload.errors import StateError
from offload.listener import Listener
from offload.measured import ComponentMeasured, Measured
from offload.report import RequestUsage
from offload.settling import charge
from offload.survey import TRUNK
from offload.timeline import Share, Timeline


class Probe(Listener):
    """Made for one request of one residency; ``measured`` tells what it saw."""

    def __init__(self, card: Card, source: str) -> None:
        self._card = card
        self._source = source
        self._line = Timeline()
        self._ends: list[object] = []  # of the request: moments of the card
        self._usage: RequestUsage | None = None
        self._passes: dict[str, int] = {}
        self._current = ""  # whose the live bytes are
        self._activation_bytes: dict[str, int] = {}
        self._peak_bytes = 0
        self._failed = ""  # a component of which a pass failed
        self._result: Measured | None = None
        self.unseen: dict[str, list[str]] = {}  # component -> layers whose calls cannot be seen
        self.failure = "no request ran within it"  # why it teaches nothing; "" once one has

    # --- the request -------------------------------------------------------------------------
    def request_begins(self, usage: RequestUsage) -> None:
        if self._usage is not None:
            self._ends.clear()
            self.failure = "more than one request ran within it"
            return
        self._usage = usage
        self._ends.append(self._card.moment())

    def request_is_over(self, *, finished: bool) -> None:
        if not self._ends:
            return
        self._note_peaks()
        self._ends.append(self._card.moment())
        assert self._usage is not None
        self._usage.peak_bytes = self._peak_bytes  # the card's own began anew with every pass
        spoiled = f"a pass of {self._failed} failed" if self._failed else ""
        self.failure = spoiled if finished else "its request failed"

    # --- a pass ------------------------------------------------------------------------------
    def pass_comes(self, component: str) -> None:
        self._note_peaks()
        self._line.push(None, self._card.moment())

    def pass_begins(self, component: str) -> None:
        number = self._passes[component] = self._passes.get(component, 0) + 1
        self._line.ran(component)
        self._become(component)
        share = Share(component, number, TRUNK)
        self._line.count(share)
        self._line.turn(share, self._card.moment())

    def pass_ends(self, component: str) -> None:
        self._line.turn(None, self._card.moment())
        self._note_peaks()

    def pass_is_over(self, component: str) -> None:
        self._line.pop(self._card.moment())
        around = self._line.around
        self._become(component if around is None else around.component)

    def pass_fails(self, component: str) -> None:
        self._failed = component

    # --- a unit's call -----------------------------------------------------------------------
    def unit_comes(self) -> None:
        self._line.push(None, self._card.moment())

    def unit_begins(self, unit: str) -> None:
        around = self._line.around
        assert around is not None, "a unit is called within a pass"
        share = around._replace(unit=unit)
        self._line.count(share)
        self._line.turn(share, self._card.moment())

    def unit_ends(self) -> None:
        self._line.turn(None, self._card.moment())

    def unit_is_over(self) -> None:
        self._line.pop(self._card.moment())

    # --- live bytes --------------------------------------------------------------------------
    def _become(self, component: str) -> None:
        """What lives from here on lives while ``component`` runs, until another one does."""
        self._peak_bytes = max(self._peak_bytes, self._card.usage().peak_bytes)
        self._current = component
        self._card.reset_peak()

    def _note_peaks(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._card.usage().peak_bytes)
        if self._current:
            before = self._activation_bytes.get(self._current, 0)
            now = self._card.activation_peak_bytes()
            self._activation_bytes[self._current] = max(before, now)

    # --- afterwards --------------------------------------------------------------------------
    def measured(self) -> Measured:
        """What the request did. StateError where there was none, more than one, or one failed."""
        if self.failure:
            raise StateError(
                f"nothing was measured, since {self.failure}: run exactly one request within "
                "residency.measuring(), and ask after it"
            )
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> Measured:
        usage, card = self._usage, self._card
        assert usage is not None
        request_s = sum(card.laps(self._ends))
        seconds = self._line.seconds(card.laps(self._line.moments))
        charge(card, usage)  # what was not complete at its end
        return Measured(
            components={name: self._component(name, seconds) for name in self._passes},
            copy_bytes_per_s=usage.copied_bytes / usage.arming_s if usage.arming_s else 0.0,
            seconds=request_s,
            peak_bytes=usage.peak_bytes,
            source=self._source,
        )

    def _component(self, name: str, seconds: Mapping[Share, float]) -> ComponentMeasured:
        line = self._line
        uses = dict.fromkeys(self.unseen.get(name, ()), self._passes[name])  # as far as known
        uses |= {unit: count for unit, count in line.calls_of(name).items() if unit != TRUNK}
        return ComponentMeasured(
            passes=self._passes[name],
            uses=uses,
            order=tuple(uses),
            first_s=line.seconds_of_a_call(name, seconds, first=True),
            later_s=line.seconds_of_a_call(name, seconds, first=False),
            gaps=tuple(line.gaps_of(name)),
            activation_bytes=self._activation_bytes.get(name, 0),
        )
