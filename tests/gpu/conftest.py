"""For tests on a real card: one JSON line each, a card of their own, kernels that take time."""

import json
import os
from collections.abc import Callable, Iterator

import pytest
import torch

from offload import detect_card
from offload.cards import AcceleratorCard

Tell = Callable[..., None]


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Print one JSON line at once: a run that is cut off keeps what it measured."""

    def tell_(**figures: object) -> None:
        line = json.dumps({"test": request.node.name} | figures)
        with capsys.disabled():
            print(f"\n{line}", flush=True)
        if "TENURE_GPU_LOG" in os.environ:
            with open(os.environ["TENURE_GPU_LOG"], "a") as log:
                log.write(line + "\n")

    return tell_


@pytest.fixture
def card() -> Iterator[AcceleratorCard]:
    """The first card, with the order checker on; nothing of a test's stays in its cache."""
    found = detect_card(check_order=True)
    assert isinstance(found, AcceleratorCard)
    yield found
    found.synchronize()
    found.empty_cache()


@pytest.fixture(scope="session")
def cycles_per_ms() -> float:
    """What ``torch.cuda._sleep`` takes for a millisecond."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    start.record()
    torch.cuda._sleep(50_000_000)
    stop.record()
    torch.cuda.synchronize()
    return 50_000_000 / start.elapsed_time(stop)


@pytest.fixture
def keep_busy(cycles_per_ms: float) -> Callable[[float], None]:
    """Queue a kernel of so many milliseconds on the current stream: the host runs far ahead."""

    def keep_busy_(milliseconds: float) -> None:
        torch.cuda._sleep(int(milliseconds * cycles_per_ms))

    return keep_busy_
