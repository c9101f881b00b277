"""Apple's card: one stream, memory shared with the host, copies that are done when they return.

A host copy and a card copy are the same RAM twice, so a permanent plan is the one that saves memory
here. With a single stream every order that the engine asks for holds by itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from offload.cards.base import Card, CardUsage, Event
from offload.cards.device_memory import slack_bytes
from offload.facts import CardFacts
from offload.live_ledger import LiveLedger


class MpsCard(Card):
    """The one MPS device. It keeps no peak: the highest use seen at an allocation stands for it.

    While activations are watched, that is at every operation that makes a tensor.
    """

    def __init__(self, *, api: Any = torch) -> None:
        self._mps = api.mps
        self._empty = api.empty
        total = int(self._mps.recommended_max_memory())
        super().__init__(torch.device("mps"), "Apple MPS", total, slack_bytes(total))
        self._peak_bytes = 0

    def facts(self) -> CardFacts:
        return CardFacts(
            name=self.name,
            memory_bytes=self.memory_bytes,
            free_bytes=max(0, self.memory_bytes - self._allocated_bytes()),
            reserve_bytes=self.reserve_bytes + self.set_aside_bytes,
        )

    def usage(self) -> CardUsage:
        self._note_peak()
        return CardUsage(
            memory_bytes=self.memory_bytes,
            allocated_bytes=self._allocated_bytes(),
            reserved_bytes=int(self._mps.driver_allocated_memory()),
            peak_bytes=self._peak_bytes,
        )

    def reset_peak(self) -> None:
        self._peak_bytes = self._allocated_bytes()

    def synchronize(self) -> None:
        self._mps.synchronize()

    def empty_cache(self) -> None:
        self._mps.synchronize()  # it gives back only what no queued command still uses
        self._mps.empty_cache()

    @contextmanager
    def watching_activations(self) -> Iterator[None]:
        with LiveLedger(lambda num_bytes: self._note_peak()):
            yield

    def moment(self) -> Any:
        event = self._mps.Event(enable_timing=True)
        event.record()
        return event

    def laps(self, moments: Sequence[Any]) -> list[float]:
        if moments:
            moments[-1].synchronize()
        return [first.elapsed_time(then) / 1000 for first, then in pairwise(moments)]

    def _allocated_bytes(self) -> int:
        return int(self._mps.current_allocated_memory())

    def _note_peak(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._allocated_bytes())

    def _allocate(self, num_bytes: int, label: str) -> torch.Tensor:
        tensor: torch.Tensor = self._empty(num_bytes, dtype=torch.uint8, device=self.device)
        self._note_peak()
        return tensor

    def _release(self, tensor: torch.Tensor) -> None:
        """The caller's last reference frees it."""

    def _make_event(self) -> Any:
        return self._mps.Event(enable_timing=False)

    def _record(self, event: Event, stream: str) -> None:
        event.handle.record()

    def _wait(self, event: Event, stream: str, charge_to: str) -> None:
        """One stream: what was queued before is done before."""

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, charge_to: str) -> None:
        destination.copy_(source)

    def _passed(self, event: Event) -> bool:
        return bool(event.handle.query())

    def _host_wait(self, event: Event) -> None:
        event.handle.synchronize()
