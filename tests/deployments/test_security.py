"""What a stranger may send harms nobody, and what goes wrong inside stays inside."""

import json
import logging
import os
import pickle
import shutil
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError
from starlette.testclient import TestClient

from deployments.api import create_api
from deployments.body_limit import MAX_HEAD_BYTES, MAX_JSON_BYTES
from deployments.config import AppConfig, ModelConfig
from deployments.errors import JobFailed, ModelError
from deployments.paths import ROOT
from deployments.pipeline import load_pipeline
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.test_api import ARGS, URL
from tests.deployments.test_dispatch import fleet_of, sent
from tests.deployments.test_driver import FakeHandle, fails
from tests.deployments.test_fleet import replica

JSON = {"content-type": "application/json"}
SECRET = "/etc/secret-of-the-server"


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def client(backend):
    return TestClient(create_api(AppConfig.model_validate(ARGS), backend), "http://t", False)


def test_an_error_inside_is_told_by_its_id_alone_and_the_log_has_the_rest(client, backend, caplog):
    backend.error = RuntimeError(SECRET)
    answer = client.post(URL, json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "the server failed on request mine (RuntimeError); see its log",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "Traceback" in caplog.text
    assert SECRET in caplog.text
    assert "request mine" in caplog.text


def test_an_error_in_a_stream_that_has_begun_tells_no_more(client, backend, caplog):
    backend.error, backend.error_after = RuntimeError(SECRET), 3
    body = {"prompt": "a", "stream": True, "partial_images": 3, "num_inference_steps": 4}
    text = client.post(URL, json=body, headers={"X-Request-Id": "mine"}).text
    last = json.loads(text.strip().rpartition("data: ")[2])
    assert last["error"]["message"].startswith("the server failed on request mine")
    assert "Traceback" not in text
    assert SECRET not in text
    assert SECRET in caplog.text


def test_rays_tracebacks_stay_in_the_log(caplog):
    caplog.set_level(logging.ERROR)
    words = f"Traceback (most recent call last):\n  File {SECRET}, line 1, in draw\nSystemExit"
    lost = RayTaskError("generate", words, SystemExit())
    with pytest.raises(JobFailed) as caught:
        sent(FakeHandle(fails(lost)), fleet_of(replica("a")))
    assert "RayTaskError" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt": "a", "n": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "a", "size": "' + b"9" * 10_000 + b'x1"}',
        b'{"prompt": "a", "seed": 1e999}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"\x00",
    ],
    ids=[
        "deep",
        "long number",
        "long size",
        "infinite",
        "no UTF-8",
        "half a character",
        "null byte",
    ],
)
def test_json_that_overwhelms_a_parser_is_refused(client, body):
    assert client.post(URL, content=body, headers=JSON).status_code == 400


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_no_request_needs_is_refused(client, announced):
    whole = b" " * (MAX_JSON_BYTES + 1)
    content = whole if announced else iter([whole])
    answer = client.post(URL, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_head_that_no_request_needs_is_refused_before_anything_is_read(client, backend):
    long = "x" * (MAX_HEAD_BYTES + 1)
    for answer in (
        client.post(URL, json={"prompt": "a"}, headers={"X-Long": long}),
        client.post(f"{URL}?{long}", json={"prompt": "a"}),
        client.get(f"/{long}"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (431, "head_too_large")
        assert answer.headers["X-Request-Id"]
    fits = "x" * (MAX_HEAD_BYTES - 1000)
    assert client.post(URL, json={"prompt": "a"}, headers={"X-Long": fits}).status_code == 200
    assert len(backend.jobs) == 1


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self):
        return (os.mkdir, (str(self._file),))


def test_weights_that_run_code_are_refused_and_do_not_run(tmp_path):
    folder, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(ROOT / "deployments" / "demo" / "checkpoint", folder)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    weights.with_suffix(".bin").write_bytes(pickle.dumps(Harmful(ran)))
    model = ModelConfig(name="demo", path=str(folder), dtype="float32")
    with pytest.raises(ModelError, match="only safetensors are loaded: convert it"):
        load_pipeline(model)
    assert not ran.exists()
    pickle.loads(weights.with_suffix(".bin").read_bytes())
    assert ran.exists()  # it would have
