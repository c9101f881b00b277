"""NVIDIA cards as the driver sees them, without making a context on any. It imports pynvml late.

NVML numbers cards by bus and knows nothing of ``CUDA_VISIBLE_DEVICES``; CUDA sees only the visible
ones, in their order, and stops at the first entry that it does not know.
"""

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from offload.cards.device_memory import CONTEXT_BYTES, slack_bytes
from offload.errors import CardError
from offload.facts import CardFacts

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Nvml:
    """A loaded driver library."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml

    @classmethod
    def load(cls) -> "Nvml | None":
        """None where no NVIDIA driver is installed or loaded."""
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError:
            log.warning(
                "nvidia-ml-py is not installed, so asking an NVIDIA card for its memory makes a "
                "context on it; pip install nvidia-ml-py"
            )
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def uuids(self) -> list[str]:
        """Every card of the machine, in the order of the bus."""
        handle_of = self._pynvml.nvmlDeviceGetHandleByIndex
        count = self._pynvml.nvmlDeviceGetCount()
        return [_text(self._pynvml.nvmlDeviceGetUUID(handle_of(i))) for i in range(count)]

    def facts(self, uuid: str) -> CardFacts:
        """One card or MIG instance now; its reserve is that of a process without a context."""
        try:
            handle = self._pynvml.nvmlDeviceGetHandleByUUID(uuid)
            free, total = self._memory(handle)
            name = _text(self._pynvml.nvmlDeviceGetName(handle))
        except self._pynvml.NVMLError as error:
            raise CardError(
                f"the driver does not answer for card {uuid}: {error}; compare with `nvidia-smi -L`"
            ) from error
        return CardFacts(
            name=name,
            memory_bytes=total,
            free_bytes=free,
            reserve_bytes=CONTEXT_BYTES + slack_bytes(total),
            uuid=uuid,
        )

    def _memory(self, handle: Any) -> tuple[int, int]:
        """(free, total) bytes; total is without the part that the driver keeps to itself."""
        ask = self._pynvml.nvmlDeviceGetMemoryInfo
        try:
            memory = ask(handle, version=self._pynvml.nvmlMemory_v2)
            return int(memory.free), int(memory.total - memory.reserved)
        except self._pynvml.NVMLError:  # an old driver
            memory = ask(handle)
            return int(memory.free), int(memory.total)


def visible(uuids: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The cards that CUDA will number 0, 1, ...: by index, whole or shortened UUID, or MIG name."""
    wanted = environ.get(VISIBLE)
    if wanted is None:
        return list(uuids)
    seen: list[str] = []
    for entry in (part.strip() for part in wanted.split(",")):
        found = _find(entry, uuids)
        if found is None:
            break
        seen.append(found)
    return seen


def _find(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry
    if entry.isdecimal():
        return uuids[int(entry)] if int(entry) < len(uuids) else None
    matching = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
