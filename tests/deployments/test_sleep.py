"""An idle replica gives its card back, and the next job draws the same picture."""

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest
from ray import serve
from safetensors.torch import load_file, save_file

from deployments import driver as driver_module
from deployments.config import AppConfig
from deployments.driver import Driver
from deployments.engine import Engine
from deployments.errors import JobFailed
from deployments.fleet import Fleet
from deployments.messages import ReplicaState, State
from deployments.paths import ROOT
from deployments.rank import rank
from deployments.replica import DiffusionReplica
from deployments.sleeping import IdleClock
from offload import SimulatedCard
from tests.deployments.conftest import APP
from tests.deployments.fake_backend import state_of
from tests.deployments.test_engine import config, draw, engine_of
from tests.deployments.test_rank import ANY, one
from tests.deployments.test_replica import FakeEngine, job, messages_of

MODEL = ROOT / "deployments" / "demo" / "checkpoint"
ROOMY, SMALL = 64 << 20, 10 << 20  # everything permanent; the text encoder lent


# --- the engine on simulated cards --------------------------------------------------------------
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """The demo model stored as it is loaded: without a conversion, weights stay in the mapping."""
    folder = Path(shutil.copytree(MODEL, tmp_path_factory.mktemp("model") / "demo"))
    for file in folder.rglob("*.safetensors"):
        weights = {name: weight.float() for name, weight in load_file(file).items()}
        file.unlink()
        save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(params=[ROOMY, SMALL], ids=["permanent", "lent"])
def engine(request, checkpoint: Path, tmp_path: Path) -> Engine:
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    model = {"name": "demo", "path": str(folder), "dtype": "float32"}
    card = SimulatedCard(memory_bytes=request.param)
    return engine_of(config(model=model, components={}), card=card)


def test_the_picture_is_the_same_after_a_sleep_and_the_card_was_empty(engine):
    before = draw(engine).images
    standing, store = engine._card.usage().allocated_bytes, engine.snapshot["host"]["store_bytes"]
    for _ in range(2):
        engine.sleep()
        assert engine.asleep
        assert engine._card.usage().allocated_bytes == 0
        assert engine.snapshot["card"]["allocated_bytes"] == 0
        assert draw(engine).images == before  # it wakes by itself
        assert not engine.asleep
        assert engine._card.usage().allocated_bytes == standing
        assert engine.snapshot["host"]["store_bytes"] == store


def test_weights_of_the_checkpoint_are_not_kept_in_host_memory_asleep(engine):
    before = engine.snapshot["host"]["store_bytes"]
    engine.sleep()
    reports = engine.components
    permanent = sum(report["permanent_bytes"] for report in reports)
    buffers = sum(facts.buffer_bytes for facts in engine._residency.facts)
    assert permanent > 100 * buffers
    assert engine.snapshot["host"]["store_bytes"] - before == buffers
    assert sum(report["on_card_bytes"] for report in reports) == 0


def test_a_checkpoint_that_was_removed_costs_the_replica_its_life(engine, tmp_path):
    engine.sleep()
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(JobFailed, match=r"cannot wake and is replaced.*safetensors"):
        draw(engine)
    assert "safetensors" in engine.sticky_error
    assert engine._card.usage().allocated_bytes == 0


def test_memory_that_others_took_fails_the_job_and_the_next_one_is_right(engine):
    before = draw(engine).images
    engine.sleep()
    engine._card.used_bytes = engine._card.memory_bytes
    with pytest.raises(JobFailed, match="others took the card's memory"):
        draw(engine)
    assert (engine.asleep, engine.sticky_error) == (True, "")
    engine._card.used_bytes = 0
    assert draw(engine).images == before


# --- when it falls asleep -----------------------------------------------------------------------
def test_the_clock_acts_once_after_idle_seconds_and_never_while_busy():
    acted = threading.Event()
    clock = IdleClock(0.05, acted.set)
    with clock.busy():
        clock.start()
        with clock.busy():
            assert not clock.idle
        assert not acted.wait(0.2)
    began = time.monotonic()
    assert acted.wait(5)
    assert time.monotonic() - began >= 0.04


def test_without_a_time_the_clock_never_acts():
    acted = threading.Event()
    clock = IdleClock(None, acted.set)
    clock.start()
    with clock.busy():
        pass
    assert not acted.wait(0.1)


class SleepyEngine(FakeEngine):
    """Sleeps and wakes by setting a flag, and remembers on which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps = self.wakes = 0
        self.acted_on: set[str] = set()

    def sleep(self) -> None:
        self.acted_on.add(threading.current_thread().name)
        self.snapshot = {
            "card": {"allocated_bytes": 0},
            "host": {"store_bytes": 0},
            "components": {},
        }
        self.asleep, self.sleeps = True, self.sleeps + 1

    def wake(self) -> None:
        self.acted_on.add(threading.current_thread().name)
        self.snapshot = {
            "card": {"allocated_bytes": 7},
            "host": {"store_bytes": 0},
            "components": {},
        }
        self.asleep, self.wakes = False, self.wakes + 1

    def draw(self, job, on_step, cancelled):
        self.wake()
        return super().draw(job, on_step, cancelled)


def replica_of(engine: SleepyEngine, after_s: float | None) -> DiffusionReplica:
    server = {"sleep_after_s": after_s}
    settings = AppConfig.model_validate({"model": {"name": "demo"}, "server": server})
    return DiffusionReplica(settings, False, place=lambda: ("one", None, 0), make=lambda *_: engine)


async def state_now(replica: DiffusionReplica) -> State:
    return ReplicaState.from_dict(await replica.record_routing_stats()).state


async def until(replica: DiffusionReplica, state: State) -> None:
    deadline = time.monotonic() + 10
    while await state_now(replica) is not state:
        assert time.monotonic() < deadline, f"never {state}"
        await asyncio.sleep(0.005)


def test_an_idle_replica_sleeps_on_its_owner_thread_and_wakes_for_a_job():
    async def run():
        engine = SleepyEngine()
        replica = replica_of(engine, 0.05)
        await until(replica, State.SLEEPING)
        assert (await messages_of(replica, job()))[-1]["images"]
        assert await state_now(replica) is State.READY
        await until(replica, State.SLEEPING)
        assert (engine.sleeps, engine.wakes, engine.acted_on) == (2, 1, {"owner_0"})

    asyncio.run(run())


def test_a_replica_that_draws_does_not_fall_asleep():
    async def run():
        engine = SleepyEngine()
        replica = replica_of(engine, 0.03)
        await messages_of(replica, job(steps=20))  # 0.2 s
        assert engine.sleeps <= 1  # before the job, if at all
        assert await state_now(replica) is State.READY

    asyncio.run(run())


def test_without_a_time_it_sleeps_and_wakes_only_when_told():
    async def run():
        engine = SleepyEngine()
        replica = replica_of(engine, None)
        answer = await replica.sleep()
        seconds = answer.pop("seconds")
        assert answer == {"replica": "one", "state": "sleeping", "allocated_bytes": 0}
        assert seconds >= 0
        answer = await replica.wake()
        assert (answer["state"], answer["allocated_bytes"]) == ("ready", 7)
        assert engine.acted_on == {"owner_0"}

    asyncio.run(run())


def test_a_sleep_that_fails_leaves_the_replica_in_service():
    class Sleepless(SleepyEngine):
        def sleep(self) -> None:
            self.sleeps += 1
            raise RuntimeError("a weight was replaced")

    async def run():
        engine = Sleepless()
        replica = replica_of(engine, 0.01)
        while not engine.sleeps:
            await asyncio.sleep(0.005)
        assert await state_now(replica) is State.READY
        assert (await messages_of(replica, job()))[-1]["images"]

    asyncio.run(run())


# --- the fleet ----------------------------------------------------------------------------------
def test_a_sleeping_replica_is_woken_rather_than_a_long_line_joined():
    asleep = one("asleep", 1.0, state=State.SLEEPING, wake_s=3.0)
    short = one("short", 1.0, state=State.BUSY, queue=1, queue_s=0.5)
    long = one("long", 1.0, state=State.BUSY, queue=2, queue_s=9.0)
    assert rank([asleep, short, long], ANY) == [["short"], ["asleep"], ["long"]]


class FakeHandle:
    """Serve's handle: each call goes to the replica of the options, and answers with its name."""

    def __init__(self, session_id: str = "") -> None:
        self._id = session_id

    def options(self, session_id: str = "", stream: bool = True) -> "FakeHandle":
        return FakeHandle(session_id)

    def __getattr__(self, name: str) -> "FakeHandle":
        self._name = name
        return self

    async def remote(self) -> dict:
        return {"replica": self._id, "did": self._name}


@pytest.fixture
def fleet(monkeypatch) -> Fleet:
    own = Fleet()
    monkeypatch.setattr(driver_module, "FLEET", own)
    for id_, state in (("a", State.READY), ("b", State.SLEEPING), ("c", State.STARTING)):
        own.report(state_of(id_, state=state).to_dict())
    return own


def test_the_driver_tells_one_replica_or_all_that_are_up(fleet):
    driver = Driver(config(), FakeHandle())
    assert asyncio.run(driver.sleep("b")) == {"replicas": [{"replica": "b", "did": "sleep"}]}
    told = asyncio.run(driver.wake())["replicas"]
    assert told == [{"replica": "a", "did": "wake"}, {"replica": "b", "did": "wake"}]
    with pytest.raises(LookupError, match="no replica 'c' is up"):
        asyncio.run(driver.sleep("c"))


def test_a_fleet_that_sleeps_is_ready(fleet):
    fleet._starting.pop("a")
    assert Driver(config(), FakeHandle()).readiness().ready


@pytest.mark.ray
def test_another_program_puts_the_fleet_to_sleep_and_a_request_wakes_one_card(server):
    server.wait_until_ready()
    before = picture(server.draw().json())
    handle = serve.get_app_handle(APP)
    slept = handle.sleep.remote().result()["replicas"]
    assert [(r["state"], r["allocated_bytes"]) for r in slept] == [("sleeping", 0)] * 2
    assert len({answer["replica"] for answer in slept}) == 2  # each call reached its own
    server.wait_for_states("sleeping", "sleeping")
    assert server.client.get("/ready").status_code == 200
    answer = server.draw()
    assert answer.status_code == 200
    assert picture(answer.json()) == before
    server.wait_for_states("ready", "sleeping")
    woken = handle.wake.remote().result()["replicas"]
    assert [r["state"] for r in woken] == ["ready"] * 2
    server.wait_until_ready()


def picture(answer: dict) -> str:
    return answer["data"][0]["b64_json"]
