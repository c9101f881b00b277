"""The driver over a fake handle: jobs end whatever happens, and errors are ours or built-in."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError
from starlette.testclient import TestClient

from deployments import driver as driver_module
from deployments.config import AppConfig
from deployments.driver import Driver
from deployments.errors import JobCancelled, JobError, JobFailed, Overloaded, ReplicaNotFound
from deployments.fleet import Fleet
from deployments.messages import DrawnImage, GenerateJob, GenerateResult, State, StepEvent
from tests.deployments.fake_backend import png_of, state_of


def config(timeout_s: float = 30.0, **server) -> AppConfig:
    return AppConfig.model_validate(
        {
            "model": {"name": "demo"},
            "limits": {"max_pixels": 100},
            "defaults": {"size": "8x8", "steps": 2},
            "server": {"request_timeout_s": timeout_s, **server},
        }
    )


class FakeStream:
    """What a streaming call of a handle gives: messages, then an end; it can be cancelled."""

    def __init__(self, messages, error=None, hang=False) -> None:
        self.messages, self.error, self.hang = messages, error, hang
        self.cancelled = False

    async def __aiter__(self):
        for message in self.messages:
            yield message
        if self.error is not None:
            raise self.error
        if self.hang:
            await asyncio.sleep(60)

    def cancel(self) -> None:
        self.cancelled = True


class FakeHandle:
    """Serve's handle to the replicas: remembers what was sent, answers with what is planned."""

    def __init__(self, *planned) -> None:
        self.planned = list(planned)
        self.streams: list[FakeStream] = []
        self.jobs: list[GenerateJob] = []
        self.options_given: list[dict] = []
        self.generate = SimpleNamespace(remote=self._remote)

    def options(self, **options):
        self.options_given.append(options)
        return self

    def _remote(self, values) -> FakeStream:
        self.jobs.append(GenerateJob.from_dict(values))
        stream = self.planned.pop(0)(self.jobs[-1])
        self.streams.append(stream)
        return stream


def draws(job: GenerateJob) -> FakeStream:
    images = tuple(
        DrawnImage(data=png_of(job.width, job.height, seed), seed=seed) for seed in job.seeds
    )
    result = GenerateResult(images=images, replica="one", usage={"seconds": 1.0}, warnings=("w",))
    return FakeStream([StepEvent(step=1, of=2).to_dict(), result.to_dict()])


def hangs(job: GenerateJob) -> FakeStream:
    return FakeStream([StepEvent(step=1, of=2).to_dict()], hang=True)


def ends_early(job: GenerateJob) -> FakeStream:
    return FakeStream([StepEvent(step=1, of=2).to_dict()])


def fails(error):
    return lambda job: FakeStream([], error=error)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    own = Fleet()
    monkeypatch.setattr(driver_module, "FLEET", own)
    return own


def job(request_id: str = "r") -> GenerateJob:
    return GenerateJob(request_id=request_id, prompt="p", width=8, height=8, steps=2, seed=1)


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("generate", "a traceback", cause).as_instanceof_cause()


def draw(handle, timeout_s=30.0, pin=None):
    async def run():
        return await Driver(config(timeout_s), handle).draw(job(), pin)

    return asyncio.run(run())


def test_a_job_returns_its_pictures():
    result = draw(FakeHandle(draws))
    assert (result.replica, result.images[0].seed) == ("one", 1)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (task_error(JobError("width is 9", "width")), JobError, "^width is 9$"),
        (task_error(JobFailed("the card failed")), JobFailed, "^the card failed$"),
        (BackPressureError(num_queued_requests=3, max_queued_requests=2), Overloaded, "too many"),
    ],
)
def test_what_a_replica_raised_arrives_without_its_traceback(error, kind, words):
    with pytest.raises(kind, match=words):
        draw(FakeHandle(fails(error)))


def test_a_job_whose_replica_died_is_sent_once_more():
    handle = FakeHandle(fails(ActorDiedError()), draws)
    assert draw(handle).replica == "one"
    assert [sent.attempt for sent in handle.jobs] == [1, 2]


def test_a_job_is_not_sent_for_ever():
    handle = FakeHandle(fails(ActorDiedError()), fails(ActorDiedError()), draws)
    with pytest.raises(JobFailed, match="died"):
        draw(handle)
    assert len(handle.jobs) == 2


def test_a_pinned_job_is_not_sent_to_someone_else(registry):
    registry.report(state_of("one").to_dict())
    handle = FakeHandle(fails(ActorDiedError()), draws)
    with pytest.raises(JobFailed, match="died"):
        draw(handle, pin="one")
    assert len(handle.jobs) == 1


def test_a_pin_to_nobody_is_refused_before_anything_is_sent():
    handle = FakeHandle(draws)
    with pytest.raises(ReplicaNotFound, match="gone"):
        draw(handle, pin="gone")
    assert handle.jobs == []


def test_a_job_without_pictures_failed():
    with pytest.raises(JobFailed, match="without a picture"):
        draw(FakeHandle(ends_early))


def test_a_job_that_takes_too_long_is_stopped():
    handle = FakeHandle(hangs)
    with pytest.raises(TimeoutError, match=r"longer than 0.05 s"):
        draw(handle, timeout_s=0.05)
    assert handle.streams[0].cancelled


def test_a_job_is_stopped_by_its_id_and_is_then_forgotten():
    async def run():
        handle = FakeHandle(hangs)
        driver = Driver(config(), handle)
        drawing = asyncio.create_task(driver.draw(job("mine")))
        await asyncio.sleep(0.01)
        assert not driver.cancel("other")
        assert driver.cancel("mine")
        with pytest.raises(JobCancelled, match="mine"):
            await drawing
        assert handle.streams[0].cancelled
        assert not driver.cancel("mine")

    asyncio.run(run())


def test_a_client_that_hangs_up_stops_its_job():
    async def run():
        handle = FakeHandle(hangs)
        drawing = asyncio.create_task(Driver(config(), handle).draw(job()))
        await asyncio.sleep(0.01)
        drawing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drawing
        assert handle.streams[0].cancelled

    asyncio.run(run())


def test_an_id_in_use_is_refused():
    async def run():
        driver = Driver(config(), FakeHandle(hangs))
        first = asyncio.create_task(driver.draw(job("same")))
        await asyncio.sleep(0.01)
        with pytest.raises(JobError, match="already running"):
            await driver.draw(job("same"))
        first.cancel()

    asyncio.run(run())


def by_handle(handle, **request):
    async def run():
        return await Driver(config(), handle).generate({"prompt": "a circle", **request})

    return asyncio.run(run())


def test_another_program_gets_plain_dicts():
    answer = by_handle(FakeHandle(draws), n=2, seed=4, quality="high")
    assert [image["seed"] for image in answer["images"]] == [4, 5]
    assert all(image["png"].startswith(b"\x89PNG") for image in answer["images"])
    assert (answer["usage"], answer["replica"]) == ({"seconds": 1.0}, "one")
    assert answer["warnings"] == ["quality has no effect", "w"]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [({"size": "99x99"}, ValueError), ({"replica": "gone"}, LookupError), ({"n": "x"}, ValueError)],
)
def test_another_program_gets_built_in_errors(request_, kind):
    with pytest.raises(kind) as caught:
        by_handle(FakeHandle(draws), **request_)
    assert type(caught.value) is kind
    pickle.dumps(caught.value)


def test_readiness_follows_the_fleet(registry):
    async def run():
        driver = Driver(config(), FakeHandle())
        seen = [driver.readiness()]
        for state, detail in ((State.STARTING, "placing vae 1/3"), (State.READY, "")):
            await driver.report(state_of("one", state=state, detail=detail).to_dict())
            seen.append(driver.readiness())
        return seen

    nobody, starting, ready = asyncio.run(run())
    assert (nobody.ready, nobody.state) == (False, "starting")
    assert (starting.ready, starting.detail) == (False, "placing vae 1/3")
    assert (ready.ready, ready.state) == (True, "ready")


def test_the_http_surface_is_built_over_the_driver_itself(registry):
    registry.report(state_of("one").to_dict())
    driver = Driver(config(), FakeHandle(draws))
    client = TestClient(driver.__serve_build_asgi_app__())
    answer = client.post("/v1/images/generations", json={"prompt": "a circle"})
    assert answer.status_code == 200
    assert answer.headers["X-Tenure-Replica"] == "one"
    assert 'tenure_request_seconds_count{outcome="served"} 1.0' in client.get("/metrics").text
    assert client.get("/fleet").json()["replicas"][0]["id"] == "one"
