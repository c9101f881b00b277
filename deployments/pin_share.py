"""How much host memory this replica may page-lock, of what the replicas on its node may together.

Locked memory cannot be given back, so a part of what is free stays unlocked. It knows neither what
is locked nor how.
"""

from collections.abc import Callable, Sequence

from deployments.host import HostMemory, read_host_memory
from deployments.neighbours import Neighbour, Node
from offload import PinBudget, format_bytes

SHARE = 0.8  # of what could be locked; the rest is left to page cache, Ray and everyone else


class NodePinShare:
    """The share of one replica. What others were given is theirs until they end."""

    def __init__(
        self,
        node: Node,
        given_bytes: int | None = None,
        read: Callable[[], HostMemory | None] = read_host_memory,
    ) -> None:
        """``given_bytes`` is what the user set; None: an equal part."""
        self._node = node
        self._given_bytes = given_bytes
        self._read = read

    def ask(self, wanted_bytes: int) -> PinBudget:
        """Host copies of so many bytes are in memory already, and so no longer free."""
        with self._node.looking() as others:
            budget = self._budget(wanted_bytes, others)
            pinned_bytes = min(wanted_bytes, budget.num_bytes)
            self._node.say(host_bytes=wanted_bytes, pinned_bytes=pinned_bytes)
        return budget

    def tell(self, pinned_bytes: int) -> None:
        with self._node.looking():
            self._node.say(pinned_bytes=pinned_bytes)

    def _budget(self, wanted_bytes: int, others: Sequence[Neighbour]) -> PinBudget:
        if self._given_bytes is not None:
            return PinBudget(num_bytes=self._given_bytes, why="as pin_budget says")
        memory = self._read()
        if memory is None:
            return PinBudget(num_bytes=wanted_bytes, why="since this system tells no more")
        host_bytes = wanted_bytes + sum(other.host_bytes for other in others)
        free_bytes = memory.available_bytes + host_bytes  # as before any host copy was made
        pool_bytes = int(SHARE * free_bytes)
        part_bytes = pool_bytes // (len(others) + 1)
        left_bytes = pool_bytes - sum(other.pinned_bytes for other in others)
        limit = "" if memory.limit_bytes is None else " under the container's memory limit"
        of = f"{SHARE:.0%} of the {format_bytes(free_bytes)} that may be taken{limit}"
        if left_bytes < part_bytes:
            why = f"what the other replicas on this node leave of {of}"
        elif others:
            why = f"this replica's part of {of}, which the node's {len(others) + 1} share"
        else:
            why = of
        return PinBudget(num_bytes=max(0, min(part_bytes, left_bytes)), why=why)
