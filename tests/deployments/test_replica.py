"""The replica over a fake engine: one job at a time on one thread, and hooks that always answer."""

import asyncio
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from PIL import Image

from deployments import starting
from deployments.config import AppConfig
from deployments.errors import JobCancelled, JobError, JobFailed
from deployments.messages import (
    CardState,
    DrawnImage,
    GenerateJob,
    GenerateResult,
    ReplicaState,
    State,
)
from deployments.replica import DiffusionReplica
from offload import CardError

CONFIG = AppConfig.model_validate({"model": {"name": "demo"}})
STEP_S = 0.01


class FakeEngine:
    """Draws in steps of a hundredth of a second, and remembers its threads."""

    def __init__(self) -> None:
        self.card = CardState(name="mini", memory_bytes=9, free_bytes=8, simulated=True)
        self.components = ({"name": "vae", "permanent_bytes": 1} | ZERO,)
        self.wish, self.explanation, self.warnings = {"vae": "all"}, "it fits", ("w",)
        self.snapshot = {"card": {"peak_bytes": 3}, "host": {"store_bytes": 2}, "components": {}}
        self.predicted_s, self.calibration, self.max_pixels = 0.0, {}, 64
        self.out_of_memory = 0
        self.sticky_error = ""
        self.asleep = False
        self.error: Exception | None = None
        self.threads = {threading.current_thread().name}
        self.steps_done = 0

    def draw(self, job, on_step, cancelled) -> GenerateResult:
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        for step in range(1, job.steps + 1):
            time.sleep(STEP_S)
            self.steps_done += 1
            due = step in job.preview_steps
            on_step(step, job.steps, *([Image.new("RGB", (1, 1), (step, 0, 0))] if due else []))
            if cancelled():
                raise JobCancelled(job.request_id)
        images = tuple(DrawnImage(data=b"png", seed=seed) for seed in job.seeds)
        return GenerateResult(images=images, replica="one", warnings=("slow",), seconds=0.5)


ZERO = {
    "forward_bytes": 0,
    "streamed_bytes": 0,
    "lifetime": "permanent",
    "policy": "leading",
    "resident_layers": 2,
    "layers": 2,
    "wish": "all",
}


def made(engine=None, **options) -> tuple[DiffusionReplica, FakeEngine]:
    own = engine or FakeEngine

    engines = []

    def make(config, name, rank, use_gpu, stages):
        engines.append(own())
        return engines[0]

    options = {"place": lambda: ("one", None, 0), "make": make, **options}
    return DiffusionReplica(CONFIG, False, **options), engines[0]


def job(steps: int = 3, **changes) -> dict:
    values = {"request_id": "r", "prompt": "p", "width": 8, "height": 8, "seed": 4, "steps": steps}
    return GenerateJob(**{**values, **changes}).to_dict()


async def messages_of(replica, values) -> list[dict]:
    return [message async for message in replica.generate(values)]


async def state_of(replica) -> ReplicaState:
    return ReplicaState.from_dict(await replica.record_routing_stats())


def test_steps_are_told_and_then_the_result():
    replica, _ = made()
    *steps, last = asyncio.run(messages_of(replica, job(steps=3)))
    assert [(event["step"], event["of"]) for event in steps] == [(1, 3), (2, 3), (3, 3)]
    left_s = [event["left_s"] for event in steps]
    assert left_s == sorted(left_s, reverse=True)
    assert left_s[0] >= 2 * STEP_S
    result = GenerateResult.from_dict(last)
    assert (result.replica, result.images[0].seed, result.warnings) == ("one", 4, ("slow",))


class Gated(FakeEngine):
    """Ends the step after a preview only once that preview was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Semaphore(0)
        self.late = 0

    def draw(self, job, on_step, cancelled) -> GenerateResult:
        def gated(step, of, *preview) -> None:
            if step - 1 in job.preview_steps and not self.read.acquire(timeout=5.0):
                self.late += 1
            on_step(step, of, *preview)

        return super().draw(job, gated, cancelled)


def test_a_preview_leaves_before_the_step_after_it_ends():
    async def run():
        replica, engine = made(Gated)
        seen = []
        async for message in replica.generate(job(steps=8, partial_images=3)):
            if preview := message.get("preview"):
                seen.append((message["step"], preview))
                engine.read.release()
        return engine.late, seen

    late, seen = asyncio.run(run())
    assert late == 0
    assert [step for step, _ in seen] == [2, 4, 6]
    assert [(preview["image"], preview["index"]) for _, preview in seen] == [(0, 0), (0, 1), (0, 2)]
    assert len({preview["data"] for _, preview in seen}) == 3


def test_the_engine_is_made_and_used_on_one_thread_that_is_not_the_loop():
    replica, engine = made()
    for _ in range(2):
        asyncio.run(messages_of(replica, job()))
    assert len(engine.threads) == 1
    assert engine.threads != {threading.current_thread().name}


def test_a_caller_that_leaves_stops_the_job_within_a_step_and_keeps_the_slot_until_then():
    async def run():
        replica, engine = made()
        running = asyncio.create_task(messages_of(replica, job(steps=1000)))
        await asyncio.sleep(5 * STEP_S)
        assert (await state_of(replica)).state is State.BUSY
        done = engine.steps_done
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert engine.steps_done <= done + 2
        state = await state_of(replica)
        assert (state.state, state.cancelled, state.served) == (State.READY, 1, 0)
        assert (await messages_of(replica, job()))[-1]["images"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "failed"), [(JobFailed("no"), 1), (JobError("bad"), 0), (KeyError("x"), 1)]
)
def test_an_error_reaches_the_caller_and_is_counted_if_anything_was_computed(error, failed):
    async def run():
        replica, engine = made()
        engine.error = error
        with pytest.raises(type(error)):
            await messages_of(replica, job())
        engine.error = None
        assert (await messages_of(replica, job()))[-1]["images"]
        return await state_of(replica)

    state = asyncio.run(run())
    assert (state.failed, state.served, state.latency["count"]) == (failed, 1, 1)


def test_a_job_that_lost_its_replica_is_counted_where_it_was_drawn():
    async def run():
        replica, _ = made()
        await messages_of(replica, job(attempt=2))
        return await state_of(replica)

    state = asyncio.run(run())
    assert (state.retried, state.served) == (1, 1)


def test_the_state_tells_card_plan_and_memory():
    replica, _ = made()
    state = asyncio.run(state_of(replica))
    assert (state.id, state.state, state.card.name) == ("one", State.READY, "mini")
    assert (state.wish, state.explanation, state.warnings) == ({"vae": "all"}, "it fits", ("w",))
    assert state.memory == {"card": {"peak_bytes": 3}, "host": {"store_bytes": 2}}
    assert state.components[0]["name"] == "vae"


def test_what_is_recorded_once_is_enough_to_show_the_replica():
    replica, _ = made()
    values = asyncio.run(replica.record_replica_metadata())
    assert ReplicaState.from_dict(values).card.name == "mini"


def test_a_replica_that_does_nothing_says_the_same_again():
    replica, _ = made()

    async def twice():
        return await replica.record_routing_stats(), await replica.record_routing_stats()

    first, second = asyncio.run(twice())
    assert first == second  # else every poll would be pushed to every router


def test_health_fails_once_the_card_is_lost():
    replica, engine = made()
    asyncio.run(replica.check_health())
    engine.sticky_error = "an illegal memory access"
    with pytest.raises(CardError, match="illegal memory access"):
        asyncio.run(replica.check_health())
    assert asyncio.run(state_of(replica)).state is State.UNHEALTHY


def test_hooks_answer_while_a_job_runs():
    async def run():
        replica, _ = made()
        running = asyncio.create_task(messages_of(replica, job(steps=20)))
        await asyncio.sleep(2 * STEP_S)
        began = time.perf_counter()
        await replica.check_health()
        await replica.record_routing_stats()
        spent = time.perf_counter() - began
        await running
        return spent

    assert asyncio.run(run()) < 10 * STEP_S


def test_a_failing_start_leaves_the_constructor_with_its_reason():
    class Failing(FakeEngine):
        def __init__(self) -> None:
            raise CardError("the card is in use")

    with pytest.raises(CardError, match="in use"):
        made(Failing)


def test_a_start_that_takes_long_is_told_to_driver_and_log(monkeypatch, caplog):
    monkeypatch.setattr(starting, "REPORT_PERIOD_S", 0.01)
    monkeypatch.setattr(starting, "LOG_PERIOD_S", 0.02)
    reports = []
    driver = SimpleNamespace(report=SimpleNamespace(remote=reports.append))
    monkeypatch.setattr(starting.serve, "get_deployment_handle", lambda name, app: driver)

    class Slow(FakeEngine):
        def __init__(self) -> None:
            time.sleep(0.1)
            super().__init__()

    with caplog.at_level(logging.INFO, logger="ray.serve"):
        replica_logger = logging.getLogger("ray.serve")
        replica_logger.addHandler(caplog.handler)
        try:
            made(Slow, place=lambda: ("one", "tenure", 0))
        finally:
            replica_logger.removeHandler(caplog.handler)
    assert {report["state"] for report in reports} == {"starting"}
    assert any("starting for" in message for message in caplog.messages)
    assert any(message.startswith("ready in") for message in caplog.messages)


def test_a_replica_without_a_gpu_of_its_own_refuses_to_use_one(monkeypatch):
    monkeypatch.setattr(starting.ray, "get_gpu_ids", list)
    with pytest.raises(CardError, match="ray_actor_options"):
        DiffusionReplica(CONFIG, True, place=lambda: ("one", None, 0), make=FakeEngine)
