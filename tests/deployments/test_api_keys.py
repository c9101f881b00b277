"""Who carries no key reads nothing and learns nothing; a key itself is never shown."""

import logging
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from deployments import api_keys
from deployments.api import create_api
from deployments.api_keys import OPEN, ApiKeys
from deployments.app import build_app
from deployments.cli import main
from deployments.config import AppConfig, ServerConfig
from deployments.errors import ConfigError
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.http_server import serving
from tests.deployments.test_api import ARGS, URL

KEY = "sk-Very.Secret_1"
VARIABLE = "KEYS_OF_THIS_TEST"
BEARER = {"Authorization": f"Bearer {KEY}"}


def config_of(**server) -> AppConfig:
    return AppConfig.model_validate({**ARGS, "server": server})


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# ours\nanother\n{KEY}\n")
    return path


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def api(backend, file):
    return create_api(config_of(api_keys_file=str(file)), backend)


@pytest.fixture
def client(api):
    return TestClient(api, raise_server_exceptions=False)


def described(api) -> list[tuple[str, str]]:
    """Method and path of every route."""
    paths = api.openapi()["paths"].items()
    return [(method.upper(), path) for path, methods in paths for method in methods]


def test_every_route_wants_a_key_but_those_that_tell_nothing(api, client):
    guarded = [(method, path) for method, path in described(api) if path not in OPEN]
    assert {("POST", URL), ("GET", "/fleet"), ("DELETE", "/v1/requests/{request_id}")} <= set(
        guarded
    )
    for method, path in [*guarded, ("GET", "/nothing"), ("PUT", URL), ("GET", "/health/")]:
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["X-Request-Id"]
        assert client.request(method, path, headers=BEARER).status_code != 401


def test_probes_scrapers_and_the_empty_page_need_none(client):
    assert {client.get(path).status_code for path in OPEN} == {200}


def test_nothing_of_a_strangers_body_is_read(client, backend):
    headers = {"content-type": "application/json"}
    assert client.post(URL, content=b"{", headers=headers).status_code == 401
    assert backend.jobs == []
    assert client.post(URL, content=b"{", headers={**headers, **BEARER}).status_code == 400


def test_keys_come_from_the_environment_too(backend, file, monkeypatch):
    monkeypatch.setenv(VARIABLE, "one\ntwo\n")
    both = ApiKeys.of(ServerConfig(api_keys_file=str(file), api_keys_env=VARIABLE))
    for key in ("one", "two", "another", KEY):
        assert both.admit("/fleet", f"Bearer {key}")
    only = ApiKeys.of(ServerConfig(api_keys_env=VARIABLE))
    assert only.admit("/fleet", "bearer  one ")
    for given in (f"Bearer {KEY}", "Bearer one two", "one", "Bearer", "Bearer ", "", "Bearer öne"):
        assert not only.admit("/fleet", given)


def test_the_command_sends_a_key_and_says_where_to_put_it(backend, file, monkeypatch):
    api = create_api(config_of(api_keys_file=str(file)), backend)
    monkeypatch.delenv("TENURE_API_KEY", raising=False)
    with serving(api) as address:
        refused = CliRunner().invoke(main, ["fleet", f"http://{address}"])
        shown = CliRunner(env={"TENURE_API_KEY": KEY}).invoke(main, ["fleet", f"http://{address}"])
    assert refused.exit_code == 2
    assert "set TENURE_API_KEY" in refused.output
    assert shown.exit_code == 0
    assert "mini" in shown.output


def test_without_keys_everyone_is_admitted():
    assert ApiKeys.of(ServerConfig()).admit("/v1/models", "")


def test_every_key_is_compared_whichever_is_right(file, monkeypatch):
    """So that the time tells nothing; a key that is as long as none of ours is compared as well."""
    compared = []
    plain = api_keys.hmac.compare_digest
    monkeypatch.setattr(
        api_keys.hmac, "compare_digest", lambda a, b: compared.append(len(a)) or plain(a, b)
    )
    keys = ApiKeys.of(ServerConfig(api_keys_file=str(file)))
    for given in ("another", KEY, "x", "x" * 1000):
        compared.clear()
        keys.admit("/fleet", f"Bearer {given}")
        assert compared == [32, 32]


def test_a_key_is_never_shown(client, file, caplog):
    caplog.set_level(logging.DEBUG)
    keys = ApiKeys.of(ServerConfig(api_keys_file=str(file)))
    wrong = "Bearer not-a-key-of-ours"
    shown = [
        repr(keys),
        str(vars(keys)),
        client.get("/fleet", headers={"Authorization": wrong}).text,
        *(client.get(path, headers=BEARER).text for path in ("/fleet", "/metrics", "/ready")),
        client.post(URL, json={"prompt": ""}, headers=BEARER).text,
        caplog.text,
    ]
    assert not [text for text in shown if KEY in text or "not-a-key" in text]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: .*keys: No such file"),
        (b"", "holds no key"),
        (b"# only words\n\n", "holds no key"),
        (b"fine\nsecret phrase\n", "line 2 is no key"),
        (b"secr\x00et\n", "line 1 is no key"),
        ("gehe\u00efm\n".encode(), "is no ASCII text"),
    ],
)
def test_a_file_that_holds_no_keys_stops_the_start_and_shows_none(tmp_path, content, said):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"server\.api_keys_file.*{said}") as caught:
        build_app(config_of(api_keys_file=str(path)))
    assert not re.search("secr|gehe", str(caught.value))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*: Is a directory"):
        ApiKeys.of(ServerConfig(api_keys_file=str(tmp_path)))


@pytest.mark.parametrize(("value", "said"), [(None, "is not set"), (" \n", "holds no key")])
def test_a_variable_that_holds_no_key_stops_the_start_too(monkeypatch, value, said):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match=rf"server\.api_keys_env {VARIABLE} {said}"):
        build_app(config_of(api_keys_env=VARIABLE))


def test_the_description_says_what_needs_a_key(api):
    paths = api.openapi()["paths"]
    assert paths["/fleet"]["get"]["security"] == [{"ApiKey": []}]
    assert "401" in paths["/fleet"]["get"]["responses"]
    assert "security" not in paths["/health"]["get"]
    plain = create_api(config_of(), FakeBackend()).openapi()
    assert "401" not in plain["paths"]["/fleet"]["get"]["responses"]
    assert "securitySchemes" not in plain["components"]
