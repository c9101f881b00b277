"""Edits over HTTP: a multipart form, pictures and all, over a fake backend."""

import base64
import io
import json

import pytest
from PIL import Image

from deployments import body_limit
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.test_api import client_of
from tests.deployments.test_image_input import data_of, halves

URL = "/v1/images/edits"


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def client(backend):
    return client_of(backend)


def picture(name="image", data=None):
    return (name, ("picture.png", data_of(halves()) if data is None else data, "image/png"))


def edit(client, *files, **fields):
    return client.post(URL, data={"prompt": "a circle", **fields}, files=files or [picture()])


def test_a_form_with_a_picture_is_drawn_and_answered_like_any_request(client, backend):
    answer = edit(client, n="2", size="64x32", seed="7", output_format="jpeg", quality="high")
    assert answer.status_code == 200
    body = answer.json()
    assert [image["seed"] for image in body["data"]] == [7, 8]
    drawn = Image.open(io.BytesIO(base64.b64decode(body["data"][0]["b64_json"])))
    assert (drawn.format, drawn.size) == ("JPEG", (64, 32))
    assert body["usage"]["input_tokens_details"] == {"text_tokens": 3, "image_tokens": 10}
    assert body["warnings"] == ["quality has no effect", "slow"]
    assert Image.open(io.BytesIO(backend.jobs[0].inputs[0])).size == (8, 4)


@pytest.mark.parametrize("names", [("image", "image"), ("image[]", "image[]"), ("image[]",)])
def test_pictures_come_under_either_name_in_their_order(client, backend, names):
    contents = [data_of(Image.new("RGB", (4 + i, 4))) for i in range(len(names))]
    files = [picture(name, data) for name, data in zip(names, contents, strict=True)]
    assert edit(client, *files).status_code == 200
    sizes = [Image.open(io.BytesIO(data)).width for data in backend.jobs[0].inputs]
    assert sizes == [4 + i for i in range(len(names))]


def test_a_mask_reaches_the_job(client, backend):
    mask = data_of(halves((0, 0, 0, 255), (0, 0, 0, 0), "RGBA"))
    assert edit(client, picture(), picture("mask", mask)).status_code == 200
    assert backend.jobs[0].mask is not None


@pytest.mark.parametrize(
    ("files", "fields", "param", "words"),
    [
        ((), {"colour": "red"}, "colour", "unknown field 'colour'"),
        ((), {"n": "two"}, "n", "integer"),
        ((), {"prompt": ["a", "b"]}, "prompt", "given twice"),
        ((), {"image": "http://127.0.0.1/x.png"}, "image", "addresses are not fetched"),
        ((), {"response_format": "url"}, "response_format", "only 'b64_json'"),
        ((picture(data=b""),), {}, "image", "image is empty"),
        ((picture(data=b"GIF89a"),), {}, "image", "cannot be read"),
        ((picture("photo"),), {}, "photo", "unknown field 'photo'"),
        ((picture("mask"),), {}, "image", "image is missing"),
        ((picture(), picture("markup")), {}, "markup", "known but not supported"),
        ((picture(), picture("mask")), {}, "mask", "mask is opaque"),
        ((picture(),) * 18, {}, None, "Too many files"),
        ((picture(),) * 17, {}, "image", "17 images to edit; send 1 to 16"),
        ((picture(), picture("mask"), picture("mask")), {}, "mask", "given 2 times"),
    ],
)
def test_a_refusal_names_what_is_wrong(client, backend, files, fields, param, words):
    answer = edit(client, *files, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert words in error["message"]
    assert backend.jobs == []


def test_a_body_that_is_no_form_is_refused_as_such(client):
    answer = client.post(URL, json={"prompt": "a"})
    assert answer.status_code == 400
    assert "send multipart/form-data" in answer.json()["error"]["message"]
    broken = client.post(URL, content=b"x", headers={"content-type": "multipart/form-data"})
    assert broken.status_code == 400
    assert "the form cannot be read" in broken.json()["error"]["message"]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("url", [URL, "/v1/images/generations"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(client, monkeypatch, announced, url):
    monkeypatch.setattr(body_limit, "MAX_BODY_BYTES", 100)
    monkeypatch.setattr(body_limit, "MAX_JSON_BYTES", 100)
    kind = "multipart/form-data; boundary=b" if url == URL else "application/json"
    whole = b"{" + b" " * 200
    parts = whole if announced else iter([whole[:50], whole[50:]])
    answer = client.post(url, content=parts, headers={"content-type": kind})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


def test_an_edit_is_streamed_under_its_own_names(client):
    answer = edit(client, stream="true", partial_images="1", n="2", num_inference_steps="4")
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = [event["type"].removeprefix("image_edit.") for event in events]
    assert kinds == ["partial_image"] * 2 + ["completed"] * 2
    assert [event["image_index"] for event in events] == [0, 1, 0, 1]


def test_the_form_stands_in_the_description_of_the_api(client):
    described = client.get("/openapi.json").json()["paths"][URL]["post"]["requestBody"]
    fields = described["content"]["multipart/form-data"]["schema"]["properties"]
    assert {"image", "mask", "prompt", "stream", "seed"} <= set(fields)
