"""A recording fake of torch's accelerator API: streams that run late, events, memory figures.

Host order is one thing, stream order another, as on a card: whatever is queued waits in its stream
until ``run()`` performs it, streams in any order, and a stream stands still at a wait.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import torch


class FakeStream:
    """Operations in order, performed when the fake runs; a wait blocks until its event happened."""

    def __init__(self, api: "FakeTorch", name: str, priority: int = 0) -> None:
        self.api, self.name, self.priority = api, name, priority
        self.queue: deque[tuple[str, Callable[[], bool]]] = deque()
        self.now_ms = 0.0  # streams work side by side: each has its own time

    def push(self, what: str, perform: Callable[[], bool]) -> None:
        self.api.log.append(f"{self.name}: {what}")
        self.queue.append((what, perform))

    def wait_event(self, event: "FakeEvent") -> None:
        ticket = event.ticket  # a wait takes the latest record at the call
        assert ticket is not None, "a wait for an event that was never recorded does nothing"

        def pass_by() -> bool:
            if ticket not in self.api.happened:
                return False
            self.now_ms = max(self.now_ms, self.api.happened[ticket])
            return True

        self.push(f"wait {event.name}", pass_by)

    def __enter__(self) -> "FakeStream":
        self.api.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.api.entered.pop()


class FakeEvent:
    """Happens when its stream reaches the record, at the stream's time."""

    def __init__(self, api: "FakeTorch", name: str, enable_timing: bool) -> None:
        self.api, self.name, self.enable_timing = api, name, enable_timing
        self.ticket: int | None = None

    def record(self, stream: FakeStream) -> None:
        ticket = self.ticket = next(self.api.tickets)

        def happen() -> bool:
            self.api.happened[ticket] = stream.now_ms
            return True

        stream.push(f"record {self.name}", happen)

    def query(self) -> bool:
        return self.ticket is None or self.ticket in self.api.happened

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.enable_timing
        assert end.enable_timing
        if not (self.query() and end.query()):
            raise RuntimeError("both events must be completed before calculating elapsed time")
        assert self.ticket is not None
        assert end.ticket is not None
        return self.api.happened[end.ticket] - self.api.happened[self.ticket]


class CardTensor(torch.Tensor):
    """Host memory that stands for card memory: copies into it go to the entered stream's queue."""

    api: "FakeTorch"

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> "CardTensor":  # type: ignore[override]
        assert non_blocking
        stream = self.api.entered[-1]
        milliseconds = source.numel() / self.api.bytes_per_ms

        def move() -> bool:
            self.as_subclass(torch.Tensor).copy_(source)
            stream.now_ms += milliseconds
            return True

        stream.push(f"copy {source.numel()}", move)
        return self


class FakeTorch:
    """Stands in for the module ``torch``, with one card of the kind ``kind``."""

    def __init__(self, kind: str = "cuda", total: int = 24 << 30, free: int = 20 << 30) -> None:
        self.kind, self.total, self.free = kind, total, free
        self.log: list[str] = []
        self.bytes_per_ms = 1e6
        self.tickets = count()
        self.happened: dict[int, float] = {}
        self.streams: list[FakeStream] = []
        self.entered: list[FakeStream] = []
        self.event_names = (f"e{number}" for number in count())
        self.current = self.make_stream("default")
        self.stats: dict[str, int] = {}
        self.initialized = False
        self.capturing = False
        self.backend = "native"
        self.tells_memory = True
        self.fraction: float | None = None
        self.current_index = 0
        self.accelerator = self._accelerator()
        self.module = self._module()

    def _accelerator(self) -> SimpleNamespace:
        return SimpleNamespace(
            current_stream=lambda device: self.current,
            memory_stats=lambda device: dict(self.stats),
            reset_peak_memory_stats=lambda device: self.log.append(f"reset peak {device}"),
            get_memory_info=self.memory_info,
            synchronize=lambda device: self.log.append(f"synchronize {device}"),
            empty_cache=lambda: self.log.append(f"empty cache of {self.current_index}"),
            set_device_index=self.set_index,
            device_index=self.device_index,
        )

    def _module(self) -> SimpleNamespace:
        return SimpleNamespace(
            is_initialized=lambda: self.initialized,
            is_available=lambda: True,
            device_count=lambda: 1,
            is_current_stream_capturing=lambda: self.capturing,
            get_allocator_backend=lambda: self.backend,
            set_per_process_memory_fraction=self.set_fraction,
            get_device_properties=lambda device: SimpleNamespace(
                name=f"Fake {self.kind}", total_memory=self.total, uuid="1234"
            ),
            mem_get_info=self.memory_info,
        )

    # --- what the card calls -----------------------------------------------------------------
    def get_device_module(self, device: torch.device) -> SimpleNamespace:
        assert device.type == self.kind
        return self.module

    def Stream(self, *, device: torch.device, priority: int) -> FakeStream:
        return self.make_stream(f"copy{len(self.streams)}", priority)

    def Event(self, *, device: torch.device, enable_timing: bool = False) -> FakeEvent:
        name = next(self.event_names)
        return FakeEvent(self, f"timing {name}" if enable_timing else name, enable_timing)

    def empty(
        self,
        num_bytes: int,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        pin_memory: bool = False,
    ) -> torch.Tensor:
        self.initialized = True
        if pin_memory:
            self.log.append(f"pin {num_bytes}")
            return torch.empty(num_bytes, dtype=dtype)
        assert device is not None
        assert device.type == self.kind
        tensor = torch.empty(num_bytes, dtype=dtype).as_subclass(CardTensor)
        CardTensor.api = self
        self.log.append(f"{self.current.name}: empty {num_bytes}")
        return tensor

    def memory_info(self, device: torch.device) -> tuple[int, int]:
        if not self.tells_memory:
            raise RuntimeError("the driver does not tell")
        self.initialized = True
        return self.free, self.total

    def set_fraction(self, fraction: float, device: torch.device) -> None:
        assert isinstance(fraction, float)
        assert 0 <= fraction <= 1
        self.fraction = fraction

    def set_index(self, index: int) -> None:
        self.current_index = index

    @contextmanager
    def device_index(self, index: int) -> Iterator[None]:
        before, self.current_index = self.current_index, index
        yield
        self.current_index = before

    # --- what a test calls -------------------------------------------------------------------
    def make_stream(self, name: str, priority: int = 0) -> FakeStream:
        stream = FakeStream(self, name, priority)
        self.streams.append(stream)
        return stream

    def launch(self, milliseconds: float, work: Callable[[], object] = lambda: None) -> None:
        """Queue a kernel on the current stream."""
        stream = self.current

        def kernel() -> bool:
            work()
            stream.now_ms += milliseconds
            return True

        stream.push("kernel", kernel)

    def run(self, seed: int = 0) -> None:
        """Perform all that can be performed; nothing but events orders the streams."""
        rng, waiting = random.Random(seed), list(self.streams)
        while waiting:
            stream = rng.choice(waiting)
            if not stream.queue or not stream.queue[0][1]():
                waiting.remove(stream)
                continue
            stream.queue.popleft()
            waiting = list(self.streams)
