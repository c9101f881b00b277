"""The HTTP surface, over a fake backend and without Ray."""

import base64
import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from deployments.api import create_api
from deployments.config import AppConfig
from deployments.errors import ConfigError, JobCancelled, JobFailed, Overloaded
from deployments.messages import State
from tests.deployments.fake_backend import FakeBackend, state_of

ARGS = {
    "model": {"name": "demo"},
    "limits": {"max_pixels": 16384, "max_images": 4},
    "defaults": {"size": "128x128", "steps": 20},
}
URL = "/v1/images/generations"


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def client(backend):
    return client_of(backend)


def client_of(backend, *, echo=True, **server):
    config = AppConfig.model_validate({**ARGS, "server": server})
    api = create_api(config, backend, echo_request_id=echo)
    return TestClient(api, raise_server_exceptions=False)


def draw(client, headers=None, **fields):
    return client.post(URL, json={"prompt": "a circle", **fields}, headers=headers or {})


def test_a_request_returns_pictures_of_the_asked_size_with_their_seeds(client, backend):
    answer = draw(client, n=2, size="64x32", seed=7)
    assert answer.status_code == 200
    body = answer.json()
    assert [image["seed"] for image in body["data"]] == [7, 8]
    for image in body["data"]:
        png = base64.b64decode(image["b64_json"])
        assert Image.open(io.BytesIO(png)).size == (64, 32)
    assert (body["size"], body["output_format"], body["replica"]) == ("64x32", "png", "one")
    assert body["residency"] == {"peak_bytes": 7}
    assert backend.jobs[0].prompt == "a circle"


def test_the_seed_that_was_chosen_is_returned(client, backend):
    assert draw(client).json()["data"][0]["seed"] == backend.jobs[0].seed


def test_warnings_of_the_front_and_of_the_replica_are_both_said(client):
    assert draw(client, quality="hd").json()["warnings"] == ["quality has no effect", "slow"]
    assert draw(client).json()["warnings"] == ["slow"]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "dall-e-3"}, 404, "model_not_found", "model"),
        ({"response_format": "url"}, 400, "invalid_value", "response_format"),
        ({"size": "512x512"}, 400, "invalid_value", "size"),
        ({"colour": "red"}, 400, "invalid_value", "colour"),
        ({"n": "two"}, 400, "invalid_value", "n"),
    ],
)
def test_a_refusal_has_the_shape_of_openai(client, backend, fields, status, code, param):
    answer = draw(client, **fields)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert backend.jobs == []


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (JobFailed("no picture"), 500, "false"),
        (TimeoutError("took longer than 300 s"), 408, "false"),
        (JobCancelled("was cancelled"), 499, "false"),
        (RuntimeError("surprise"), 500, "false"),
        (Overloaded("too many"), 429, None),
    ],
)
def test_a_job_that_failed_says_whether_to_try_again(client, backend, error, status, retry):
    backend.error = error
    answer = draw(client, headers={"X-Request-Id": "mine"})
    assert answer.status_code == status
    assert answer.headers.get("x-should-retry") == retry
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_an_overload_says_when_to_come_back(client, backend):
    backend.error = Overloaded("too many")
    assert int(draw(client).headers["Retry-After"]) > 0


def test_a_body_that_is_no_json_is_refused_as_such(client):
    answer = client.post(URL, content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["error"]["message"]


def test_the_client_names_its_request(client, backend):
    assert draw(client, headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    assert backend.jobs[-1].request_id == "mine-1"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a/b"])
def test_a_name_that_could_harm_is_replaced(client, given):
    answered = draw(client, headers={"X-Request-Id": given}).headers["X-Request-Id"]
    assert answered
    assert answered != given


def test_an_error_carries_the_request_id_too(client):
    answer = draw(client, headers={"X-Request-Id": "mine"}, n=99)
    assert answer.headers["X-Request-Id"] == "mine"


def test_behind_a_proxy_that_returns_the_id_it_is_returned_once(backend):
    client = client_of(backend, echo=False)
    answer = draw(client, headers={"X-Request-Id": "mine"})
    assert "X-Request-Id" not in answer.headers
    assert backend.jobs[0].request_id == "mine"


def test_a_request_is_pinned_and_told_who_drew(client, backend):
    answer = draw(client, headers={"X-Tenure-Replica": "one"})
    assert answer.headers["X-Tenure-Replica"] == "one"
    assert backend.pins == ["one"]


def test_a_replica_that_does_not_exist_is_not_found(client):
    answer = draw(client, headers={"X-Tenure-Replica": "gone"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "replica_not_found"


def test_a_request_is_stopped_by_its_id(client):
    assert client.delete("/v1/requests/running").json() == {"id": "running", "cancelled": True}
    answer = client.delete("/v1/requests/unknown")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


def test_the_model_is_listed(client):
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["demo"]
    assert client.get("/v1/models/demo").json()["object"] == "model"
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_an_unknown_path_has_the_shape_of_openai_too(client):
    answer = client.get("/v2")
    assert answer.status_code == 404
    assert "/v2" in answer.json()["error"]["message"]
    wrong = client.get(URL)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_health_tells_the_version(client):
    assert client.get("/health").json()["version"]


def test_ready_says_where_the_start_stands(client, backend):
    assert client.get("/ready").status_code == 200
    backend.fleet = [state_of("one", state=State.STARTING, detail="placing text_encoder 12/66")]
    answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {"state": "starting", "detail": "placing text_encoder 12/66"}


def test_the_fleet_tells_cards_plans_and_latency(client, backend):
    backend.fleet = [
        state_of(
            "one",
            components=({"name": "vae", "lifetime": "permanent"},),
            wish={"vae": "all"},
            explanation="it fits",
            latency=backend.fleet[0].latency,
            served=3,
        ),
        state_of("two", state=State.BUSY, queue=2),
    ]
    body = client.get("/fleet").json()
    one, two = body["replicas"]
    assert one["card"] == {
        "name": "mini",
        "memory_bytes": 1000,
        "free_bytes": 900,
        "simulated": True,
        "uuid": "",
    }
    assert (one["wish"], one["explanation"]) == ({"vae": "all"}, "it fits")
    assert one["components"] == [{"name": "vae", "lifetime": "permanent"}]
    assert one["latency"]["count"] == 1
    assert one["latency"]["p50_s"] == pytest.approx(0.5, rel=0.25)
    assert (two["state"], two["queue"], two["latency"]["count"]) == ("busy", 2, 0)
    totals = body["totals"]
    assert (totals["replicas"], totals["ready"], totals["queue"], totals["served"]) == (2, 2, 2, 3)
    assert (totals["memory_bytes"], totals["latency"]["count"]) == (2000, 1)


def test_the_fleet_page_and_the_metrics_are_served(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "/fleet" in page.text
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "tenure_replicas" in metrics.text


@pytest.fixture
def keys_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-key\n\nsecond-key\n")
    return str(file)


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key"])
def test_a_known_key_may_draw(backend, keys_file, header):
    client = client_of(backend, api_keys_file=keys_file)
    assert draw(client, headers={"Authorization": header}).status_code == 200


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic first-key", "Bearer ", "Bearer #"])
def test_anyone_else_may_not_but_probes_still_answer(backend, keys_file, header):
    client = client_of(backend, api_keys_file=keys_file)
    answer = draw(client, headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert backend.jobs == []
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


@pytest.mark.parametrize("content", [None, "# nothing\n"])
def test_a_key_file_that_holds_no_key_stops_the_start(backend, tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="api_keys_file"):
        client_of(backend, api_keys_file=str(file))
