"""Puts everything on the managed modules that stands around their calls, and takes it off again."""

from collections.abc import Mapping

from offload.asleep import AsleepSign
from offload.component import Component
from offload.guards import Guards, Suspended


class Watch:
    """Of one residency. The components may still be added to the mapping before ``on``."""

    def __init__(self, components: Mapping[str, Component], suspended: Suspended) -> None:
        self._components = components
        self._suspended = suspended
        self._standing: list[Guards | AsleepSign] = []

    def on(self) -> None:
        """Calls bring weights in; what others may not do is refused."""
        self.off()
        for name, component in self._components.items():
            component.watch()
            device = component.owner.transfer.card.device
            guards = Guards(name, component.root, device, self._suspended, lends=component.lends)
            self._standing.append(guards)

    def asleep(self) -> None:
        """Every use is refused."""
        self.off()
        for name, component in self._components.items():
            self._standing.append(AsleepSign(name, component.root))

    def off(self) -> None:
        """The modules are as they were; idempotent."""
        while self._standing:
            self._standing.pop().remove()
        for component in self._components.values():
            component.unwatch()
