"""The bytes of one accelerator: what is there, what is free, what a cap leaves. No streams.

[Note: a smaller card] A cap of X bytes lets a large card play a smaller one. torch's memory
fraction limits its allocator only, so what this process has outside it (context, kernels) is taken
off first; the driver's own figures do not change, so free bytes are worked out here.
"""

from collections.abc import Callable
from typing import Any

import torch

from offload.cards.base import CardUsage
from offload.facts import CardFacts

CONTEXT_BYTES = 3 << 28  # 0.75 GiB, until a context exists and can be measured
LEAST_SLACK_BYTES = 256 << 20


def slack_bytes(memory_bytes: int) -> int:
    """Kept free on any card for fragmentation and what libraries take on their own."""
    return max(LEAST_SLACK_BYTES, memory_bytes // 50)


class DeviceMemory:
    """Asks without making a context for as long as there is none, if it was given a ``probe``."""

    def __init__(
        self,
        device: torch.device,
        *,
        cap_bytes: int | None,
        probe: Callable[[], CardFacts] | None,
        api: Any,
    ) -> None:
        self._device = device
        self._module = api.get_device_module(device)
        self._accelerator = api.accelerator
        self._probe = probe
        self._cap_bytes = cap_bytes
        self.card = probe() if probe is not None else _ask_driver(self._module, device)
        known = not self.has_context  # what is in use now belongs to others
        self._others_bytes = self.card.memory_bytes - self.card.free_bytes if known else 0

    @property
    def has_context(self) -> bool:
        return self._probe is None or bool(self._module.is_initialized())

    @property
    def memory_bytes(self) -> int:
        return min(self.card.memory_bytes, self._cap_bytes or self.card.memory_bytes)

    @property
    def reserve_bytes(self) -> int:
        slack = slack_bytes(self.memory_bytes)
        return slack if self.has_context else slack + CONTEXT_BYTES

    @property
    def free_bytes(self) -> int:
        """Counts what the allocator keeps but does not use, since it can be had."""
        if self._probe is not None and not self.has_context:
            return min(self._probe().free_bytes, self.memory_bytes)
        usage, (free, _) = self.usage(), self._ask()
        can_be_had = free + usage.reserved_bytes - usage.allocated_bytes
        if self._cap_bytes is None:
            return can_be_had
        return max(0, min(can_be_had, self.apply_cap() - usage.allocated_bytes))

    def usage(self) -> CardUsage:
        stats = self._accelerator.memory_stats(self._device)  # empty without a context
        return CardUsage(
            memory_bytes=self.memory_bytes,
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            reserved_bytes=stats.get("reserved_bytes.all.current", 0),
            peak_bytes=stats.get("allocated_bytes.all.peak", 0),
        )

    def reset_peak(self) -> None:
        self._accelerator.reset_peak_memory_stats(self._device)

    def apply_cap(self) -> int:
        """Hold the allocator to what the cap leaves; returns that. See [Note: a smaller card]."""
        free, total = self._ask()
        if self._cap_bytes is None:
            return total
        non_torch = max(0, total - free - self.usage().reserved_bytes - self._others_bytes)
        allowed = max(0, min(self._cap_bytes, total) - non_torch)
        self._module.set_per_process_memory_fraction(allowed / total, self._device)
        return allowed

    def lift_cap(self) -> None:
        """Give the whole card back to the allocator, which outlives this object."""
        self._cap_bytes = None
        self._module.set_per_process_memory_fraction(1.0, self._device)

    def _ask(self) -> tuple[int, int]:
        """(free, total) by the driver. Makes a context where none exists."""
        ask = getattr(self._accelerator, "get_memory_info", None) or self._module.mem_get_info
        try:
            free, total = ask(self._device)
        except RuntimeError:  # some XPU drivers do not tell
            total = self.card.memory_bytes
            return total - self.usage().reserved_bytes, total
        return int(free), int(total)


def _ask_driver(module: Any, device: torch.device) -> CardFacts:
    """Name and memory of a card that NVML does not know."""
    properties = module.get_device_properties(device)
    total = int(properties.total_memory)
    return CardFacts(name=str(properties.name), memory_bytes=total, free_bytes=total)
