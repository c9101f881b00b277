"""Whatever is sent to the HTTP front is answered in OpenAI's shape, never with a fault of ours."""

import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from deployments.api import create_api
from deployments.config import AppConfig
from deployments.schema import NOT_SUPPORTED, ImageRequest
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.test_api import ARGS, URL
from tests.deployments.test_image_input import data_of, halves

# Lone surrogates, too: JSON has them.
LETTERS = st.characters() | st.sampled_from(["\ud800", "\udfff", "\0", " "])
TEXT = st.lists(LETTERS, max_size=12).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
NAMES = st.sampled_from([*ImageRequest.model_fields, *NOT_SUPPORTED]) | TEXT
LIKELY = st.sampled_from(["auto", "64x64", "png", "webp", "b64_json", 1, 2, True, "true", "2"])
FIELDS = st.dictionaries(NAMES, LIKELY | VALUES, max_size=4)
CHECKED = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(scope="module")
def client():
    api = create_api(AppConfig.model_validate(ARGS), FakeBackend())
    with TestClient(api, raise_server_exceptions=False) as client:
        yield client


def judge(answer) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@CHECKED
@given(fields=FIELDS, prompt=st.just("a circle") | TEXT)
def test_any_json(client, fields, prompt):
    body = json.dumps({"prompt": prompt, **fields})  # escaped, so that a surrogate is sent as one
    judge(client.post(URL, content=body, headers={"content-type": "application/json"}))


@CHECKED
@given(body=st.binary(max_size=60), kind=st.sampled_from(["application/json", "text/plain", ""]))
def test_any_body(client, body, kind):
    judge(client.post(URL, content=body, headers={"content-type": kind} if kind else {}))


@CHECKED
@given(
    fields=st.dictionaries(
        st.sampled_from([*ImageRequest.model_fields]), st.text(max_size=8), max_size=3
    ),
    picture=st.binary(max_size=40) | st.just(data_of(halves())),
)
def test_any_form(client, fields, picture):
    files = [("image", ("picture", picture, "image/png"))]
    judge(client.post("/v1/images/edits", data={"prompt": "a", **fields}, files=files))


@CHECKED
@given(name=st.text(min_size=1, max_size=8), method=st.sampled_from(["GET", "DELETE", "PUT"]))
def test_any_id(client, name, method):
    id_ = quote(name, safe="")
    for path in (f"/v1/requests/{id_}", f"/v1/requests/{id_}/events", f"/v1/models/{id_}"):
        judge(client.request(method, path))
