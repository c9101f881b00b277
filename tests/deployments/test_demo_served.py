"""The demo model through the served path: what a client asks for over HTTP is what it sees."""

import base64
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from PIL import Image
from ray import serve

from tests.deployments.conftest import APP, Server, wait_for
from tests.deployments.demo_classifier import look
from tests.deployments.demo_prompts import Asked, one_object, two_objects
from tests.deployments.test_cluster import busy, picture
from tests.docs import blocks

pytestmark = pytest.mark.ray
STEPS = 8  # draws as well as the default 20
LONG = {"num_inference_steps": 50, "n": 4}


def drawn(server: Server, asked: list[Asked]) -> list[Image.Image]:
    """One request for each prompt, from two clients at once, spread over both cards."""

    def draw(one: Asked) -> Image.Image:
        answer = server.draw(prompt=one.prompt, seed=one.seed, num_inference_steps=STEPS)
        assert answer.status_code == 200, answer.text
        png = base64.b64decode(answer.json()["data"][0]["b64_json"])
        return Image.open(io.BytesIO(png))

    with ThreadPoolExecutor(2) as clients:
        return list(clients.map(draw, asked))


@pytest.mark.parametrize(
    ("asked", "least"), [(one_object(), 0.90), (two_objects(), 0.75)], ids=["one", "two"]
)
def test_served_pictures_show_what_was_asked(server: Server, asked: list[Asked], least: float):
    server.wait_until_ready()
    pictures = drawn(server, asked)
    right = [look(p).holds(a.wanted) for a, p in zip(asked, pictures, strict=True)]
    share = sum(right) / len(right)
    print(f"served: {share:.1%} of {len(right)} right")
    assert share >= least


def test_a_size_that_it_was_not_trained_for_is_drawn_with_a_warning(server: Server):
    answer = server.draw(size="64x64").json()
    assert answer["warnings"] == [
        "size is 64x64; demo was trained for 128x128, and the picture may repeat or cut off what "
        "was asked"
    ]
    assert server.draw(size="128x128").json().get("warnings", []) == []


def test_a_size_above_the_limit_is_refused_by_name(server: Server):
    answer = server.draw(size="256x256")
    assert answer.status_code == 400
    assert "16384" in answer.json()["error"]["message"]


# --- streams, by the unmodified openai client and by handle --------------------------------------
@pytest.fixture
def client(server):
    server.wait_until_ready()
    url = f"{server.client.base_url}/v1".replace("//v1", "/v1")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def image_of(event) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(event.b64_json)))


def test_previews_lead_to_the_picture_that_is_drawn_without_them(server, client):
    seeded = {"seed": 7, "num_inference_steps": 8}
    *partial, completed = client.images.generate(
        prompt="a red circle", stream=True, partial_images=3, extra_body=seeded
    )
    assert [event.partial_image_index for event in partial] == [0, 1, 2]
    assert len({event.b64_json for event in partial}) == 3
    assert {image_of(event).size for event in (*partial, completed)} == {(128, 128)}
    assert base64.b64decode(completed.b64_json) == picture(server.draw(**seeded))
    usage = completed.usage
    assert (usage.input_tokens > 0, usage.output_tokens) == (True, 64)


def test_a_picture_is_edited(client):
    drawn = Image.new("RGB", (128, 128), "white")
    drawn.paste("red", (32, 32, 96, 96))
    buffer = io.BytesIO()
    drawn.save(buffer, format="PNG")
    answer = client.images.edit(
        prompt="a blue circle",
        image=("square.png", buffer.getvalue(), "image/png"),
        output_format="webp",
        extra_body={"seed": 7, "num_inference_steps": 3},
    )
    assert (image_of(answer.data[0]).format, image_of(answer.data[0]).size) == ("WEBP", (128, 128))
    assert answer.usage.input_tokens_details.image_tokens == 64
    Image.new("RGBA", (128, 128)).save(mask := io.BytesIO(), format="PNG")
    png = ("mask.png", mask.getvalue(), "image/png")
    with pytest.raises(openai.BadRequestError, match="takes no mask"):
        client.images.edit(prompt="a", image=png, mask=png)


def allocated_bytes(server: Server) -> dict[str, int]:
    """Card -> bytes on it between requests: what stays there."""
    ready = server.wait_until_ready()
    return {name: r["memory"]["card"]["allocated_bytes"] for name, r in ready.items()}


def test_a_client_that_leaves_its_stream_stops_the_job_and_the_next_picture_is_right(
    server, client
):
    before = picture(server.draw())
    standing = allocated_bytes(server)
    cancelled = server.fleet()["totals"]["cancelled"]
    stream = client.images.generate(
        prompt="a circle", stream=True, partial_images=3, extra_body=LONG
    )
    next(stream)
    began = time.monotonic()
    stream.close()
    wait_for("the cancel", lambda: server.fleet()["totals"]["cancelled"] == cancelled + 1)
    assert time.monotonic() - began < 3.0  # of 200 steps; the fleet is told twice a second
    assert allocated_bytes(server) == standing
    assert picture(server.draw()) == before


def test_progress_is_told_by_id_until_the_request_is_stopped(server, client):
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.draw, headers={"X-Request-Id": "watched"}, **LONG)
        wait_for("a busy replica", lambda: busy(server))
        with server.client.stream("GET", "/v1/requests/watched/events") as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            events = (json.loads(line.removeprefix("data: ")) for line in lines)
            steps = [next(e) for e in [events] * 4]
            assert server.client.delete("/v1/requests/watched").status_code == 200
            *rest, end = events
        assert running.result().json()["error"]["code"] == "request_cancelled"
    told = [event["step"] for event in (*steps, *rest) if event["type"] == "request.progress"]
    assert told == list(range(told[0], told[0] + len(told)))
    assert all(event["seconds_left"] > 0 for event in steps[1:])
    assert (end["type"], end["outcome"]) == ("request.ended", "cancelled")


def test_another_application_is_told_each_step_by_handle(server):
    handle = serve.get_app_handle(APP).options(stream=True)
    request = {"prompt": "a red circle", "num_inference_steps": 4, "seed": 7, "partial_images": 1}
    *steps, answer = list(handle.stream.remote(request))
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert [("preview" in step) for step in steps] == [False, True, False, False]
    assert answer["images"][0]["png"] == picture(server.draw(num_inference_steps=4))


def test_the_pages_example_of_a_stream_by_handle_runs_as_it_stands(server, capsys):
    (text,) = [b.text for b in blocks("python") if ".stream.remote(request)" in b.text]
    names: dict[str, Any] = {}
    exec(text, names)
    told = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert told == list(range(1, 21))
    assert names["png"] == picture(server.draw(num_inference_steps=20))
