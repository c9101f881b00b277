"""A real card through torch's generic accelerator API: CUDA, ROCm, XPU. It knows nothing of units.

[Note: waits instead of record_stream] Memory belongs to the stream that allocated it and is handed
out again as soon as the host drops it. Every copy into it is ordered before that by an event, so
nothing is marked with ``record_stream``: reuse would wait for polling, peaks would not be exact.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from offload.cards.base import COMPUTE, COPY, Card, CardUsage, Event, Timing
from offload.cards.device_memory import DeviceMemory
from offload.cards.order import OrderChecker
from offload.cards.pinning import Pinner, Runtime, load_runtime
from offload.cards.stopwatch import Stopwatch
from offload.errors import CardError
from offload.facts import CardFacts

POLL_S = 0.000_2  # torch's own wait for an event spins a core
ASSUMED_BYTES_PER_S = 25e9  # PCIe 4.0 x16, until enough was copied to know better
ENOUGH_BYTES = 256 << 20


@cache
def _copy_stream(api: Any, device: torch.device) -> Any:
    """One per process and device: torch deals from a pool of 32, then from the first one again.

    The high-priority pool is the one that others rarely take from.
    """
    return api.Stream(device=device, priority=-1)


class AcceleratorCard(Card):
    """One device of torch's accelerator. Touches it only when first used.

    ``memory_bytes`` caps it: it then plays a smaller card. ``probe`` tells the facts without making
    a context (NVML); without it the first question makes one.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        memory_bytes: int | None = None,
        probe: Callable[[], CardFacts] | None = None,
        check_order: bool = False,
        api: Any = torch,
    ) -> None:
        self._api = api
        self._index = torch.device(device).index or 0
        where = torch.device(torch.device(device).type, self._index)
        self._module = api.get_device_module(where)
        self._memory = DeviceMemory(where, cap_bytes=memory_bytes, probe=probe, api=api)
        super().__init__(
            device=where,
            name=self._memory.card.name,
            memory_bytes=self._memory.memory_bytes,
            reserve_bytes=self._memory.reserve_bytes,
            order=OrderChecker() if check_order else None,
        )
        if where.type == "cuda":  # XPU cannot register memory that is already there
            self.pinner = Pinner(self._load_runtime)
        self._copy_on: Any = None  # the copy stream; None until first use
        self._compute_on: Any = None  # the compute stream as last seen
        self._born_on: dict[int, Any] = {}  # address -> the stream whose pool it came from
        self._stopwatch = Stopwatch(lambda: api.Event(device=where, enable_timing=True))
        self._copied_bytes, self._copied_s = 0, 0.0

    # --- facts -------------------------------------------------------------------------------
    def facts(self) -> CardFacts:
        self.reserve_bytes = self._memory.reserve_bytes
        return CardFacts(
            name=self.name,
            memory_bytes=self.memory_bytes,
            free_bytes=self._memory.free_bytes,
            reserve_bytes=self.reserve_bytes + self.set_aside_bytes,
            copy_bytes_per_s=self._copy_bytes_per_s(),
            uuid=self._memory.card.uuid,
        )

    def usage(self) -> CardUsage:
        return self._memory.usage()

    def reset_peak(self) -> None:
        self._memory.reset_peak()

    def lift_cap(self) -> None:
        """Give the whole card back to the allocator, which outlives this object."""
        self._memory.lift_cap()
        self.memory_bytes = self._memory.memory_bytes

    def is_capturing(self) -> bool:
        return bool(self._module.is_current_stream_capturing())

    def synchronize(self) -> None:
        self._api.accelerator.synchronize(self.device)

    def empty_cache(self) -> None:
        # With another device current, expandable segments were unmapped under running work.
        with self._api.accelerator.device_index(self._index):
            self._api.accelerator.empty_cache()

    def take_timings(self) -> dict[str, Timing]:
        for lap in self._stopwatch.finished():
            timing = self.timing(lap.label)
            if lap.num_bytes:
                timing.copy_s += lap.seconds
                self._copied_bytes += lap.num_bytes
                self._copied_s += lap.seconds
            else:
                timing.stall_s += lap.seconds
        return super().take_timings()

    def moment(self) -> Any:
        return self._stopwatch.start(self._stream(COMPUTE))

    def laps(self, moments: Sequence[Any]) -> list[float]:
        if moments:
            self._host_wait(Event("the last moment", moments[-1]))
        return self._stopwatch.between(moments)

    def _copy_bytes_per_s(self) -> float:
        measured = self._copied_bytes >= ENOUGH_BYTES and self._copied_s > 0
        return self._copied_bytes / self._copied_s if measured else ASSUMED_BYTES_PER_S

    # --- streams -----------------------------------------------------------------------------
    def _open(self) -> None:
        """First use of the device, by the owner thread."""
        backend = getattr(self._module, "get_allocator_backend", lambda: "native")()
        if backend == "cudaMallocAsync":
            raise CardError(
                f"{self.name} uses the allocator cudaMallocAsync, whose memory statistics read "
                "zero; remove backend:cudaMallocAsync from PYTORCH_ALLOC_CONF"
            )
        self._api.accelerator.set_device_index(self._index)
        self._copy_on = _copy_stream(self._api, self.device)
        self._memory.apply_cap()

    def _stream(self, stream: str) -> Any:
        if self._copy_on is None:
            self._open()
        if stream == COPY:
            return self._copy_on
        current = self._api.accelerator.current_stream(self.device)
        if self._compute_on is not None and current != self._compute_on:
            self._order(self._compute_on, current)  # the pipeline has changed streams
        self._compute_on = current
        return current

    def _load_runtime(self) -> Runtime:
        self._stream(COPY)  # page-locking makes a context: on this device, not on the first one
        return load_runtime(self._api)

    def _order(self, first: Any, then: Any) -> None:
        event = self._make_event()
        event.record(first)
        then.wait_event(event)

    # --- the card's own ----------------------------------------------------------------------
    def _allocate(self, num_bytes: int, label: str) -> torch.Tensor:
        stream = self._stream(COMPUTE)
        tensor: torch.Tensor = self._api.empty(num_bytes, dtype=torch.uint8, device=self.device)
        self._born_on[tensor.data_ptr()] = stream
        return tensor

    def _release(self, tensor: torch.Tensor) -> None:
        """The pool may hand it out at once: order the pool's stream behind the one that used it."""
        born_on, current = self._born_on.pop(tensor.data_ptr(), None), self._stream(COMPUTE)
        if born_on is not None and born_on != current:
            self._order(current, born_on)

    def _staging(self, num_bytes: int) -> torch.Tensor:
        self._stream(COPY)  # as for the pinner
        pinned: torch.Tensor = self._api.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        return pinned

    def _make_event(self) -> Any:
        return self._api.Event(device=self.device)

    def _record(self, event: Event, stream: str) -> None:
        event.handle.record(self._stream(stream))

    def _wait(self, event: Event, stream: str, charge_to: str) -> None:
        waiting = self._stream(stream)
        if not charge_to:
            waiting.wait_event(event.handle)
        elif not event.handle.query():  # passed: nothing to wait for, nothing to measure
            before = self._stopwatch.start(waiting)
            waiting.wait_event(event.handle)
            self._stopwatch.stop(before, waiting, charge_to)

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None:
        stream = self._stream(COPY)
        before = self._stopwatch.start(stream)
        with stream:
            destination.copy_(source, non_blocking=True)
        self._stopwatch.stop(before, stream, charge_to, source.numel())

    def _passed(self, event: Event) -> bool:
        return bool(event.handle.query())

    def _host_wait(self, event: Event) -> None:
        while not event.handle.query():
            time.sleep(POLL_S)
