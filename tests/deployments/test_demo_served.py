"""The demo model through the served path: what a client asks for over HTTP is what it sees."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.deployments.conftest import Server
from tests.deployments.demo_classifier import look
from tests.deployments.demo_prompts import Asked, one_object, two_objects

pytestmark = pytest.mark.ray
STEPS = 8  # draws as well as the default 20


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
