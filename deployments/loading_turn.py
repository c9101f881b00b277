"""Replicas that start together on one node load beside each other only if host memory suffices.

A replica reserves what loading may take. Where that does not fit beside those that load now, it
waits; where nobody loads it goes, in any case. What a process that died had reserved is free. It
knows nothing of how weights are loaded.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from deployments.config import AppConfig, ModelConfig
from deployments.host import HostMemory, read_host_memory
from deployments.loading import check_model_folder, find_model_folder
from deployments.neighbours import Neighbour, Node, join_node
from deployments.stages import Stages
from offload import format_bytes

POLL_S = 0.5
BESIDE_WEIGHTS_BYTES = 512 << 20  # the card's context, two staging buffers, libraries
TWICE = 1.1  # of the weights: a unit is there twice while it moves, and the trunk may be large
logger = logging.getLogger("ray.serve")


def bytes_to_load(model: ModelConfig) -> int | None:
    """Host memory that loading takes at most; None where the weights are still to be downloaded.

    Read from headers. What is converted on load is held in its new dtype, what is lent to the card
    gets a host copy, and no weight is both for longer than its unit moves.
    """
    path = find_model_folder(
        model.source, revision=model.revision, local_files_only=model.local_files_only
    )
    if path is None:
        return None
    components = check_model_folder(path).components
    weights = sum(files.bytes_as(model.dtype_of(name)) for name, files in components.items())
    return int(TWICE * weights) + BESIDE_WEIGHTS_BYTES


class LoadingTurn:
    """One replica's reservation: from ``begin`` until ``end`` or the end of the process."""

    def __init__(
        self,
        node: Node,
        needed_bytes: int | None,
        *,
        tell: Callable[[str], None],
        read: Callable[[], HostMemory | None] = read_host_memory,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``tell`` is called as long as it waits; ``needed_bytes`` None: it loads alone."""
        self._node = node
        self._needed_bytes = needed_bytes
        self._tell = tell
        self._read = read
        self._sleep = sleep

    def begin(self) -> None:
        """Reserve, as soon as it fits or nobody else loads."""
        while not self._try():
            self._sleep(POLL_S)

    def end(self) -> None:
        """Everything is loaded. Idempotent."""
        with self._node.looking():
            self._node.say(loading_bytes=0)

    def _try(self) -> bool:
        with self._node.looking() as others:
            memory = self._read()
            loading = [other for other in others if other.loading_bytes]
            if memory is not None and loading and not self._fits(memory, loading):
                self._tell(self._say_waiting(memory, loading))
                return False
            self._node.say(loading_bytes=self._reserved_bytes(memory))
        if memory is not None and not loading:
            self._warn(memory)
        return True

    def _reserved_bytes(self, memory: HostMemory | None) -> int:
        if self._needed_bytes is not None:
            return self._needed_bytes
        return 1 if memory is None else memory.total_bytes

    def _fits(self, memory: HostMemory, loading: Sequence[Neighbour]) -> bool:
        reserved_bytes = sum(other.loading_bytes for other in loading)
        return self._reserved_bytes(memory) <= memory.available_bytes - reserved_bytes

    def _say_waiting(self, memory: HostMemory, loading: Sequence[Neighbour]) -> str:
        others = ", ".join(
            f"{other} loads and may take {format_bytes(other.loading_bytes)} of it"
            for other in loading
        )
        return (
            f"waiting for host memory: {self._say_need()}, {format_bytes(memory.available_bytes)} "
            f"are free, and {others}"
        )

    def _say_need(self) -> str:
        if self._needed_bytes is None:
            return "how much loading takes is not known before the download"
        return f"loading takes up to {format_bytes(self._needed_bytes)}"

    def _warn(self, memory: HostMemory) -> None:
        if self._needed_bytes is None or self._needed_bytes <= memory.available_bytes:
            return
        limit = "" if memory.limit_bytes is None else " under the container's memory limit"
        missing = format_bytes(self._needed_bytes - memory.available_bytes)
        logger.warning(
            f"loading takes up to {format_bytes(self._needed_bytes)} of host memory and "
            f"{format_bytes(memory.available_bytes)} are free{limit}: it may be killed. Give it "
            f"{missing} more, run fewer replicas on this node, or load in a dtype that is smaller "
            "or that of the files"
        )


@contextmanager
def loading_turn(config: AppConfig, name: str, stages: Stages) -> Iterator[LoadingTurn]:
    """Around loading and placing; ``end`` may be called before, once every weight has its place."""
    with stages.stage("wait", "looking at host memory"):
        turn = LoadingTurn(join_node(name), bytes_to_load(config.model), tell=stages.tell)
        turn.begin()
    try:
        yield turn
    finally:
        turn.end()
