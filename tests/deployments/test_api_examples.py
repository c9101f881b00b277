"""The HTTP examples of docs/api.md, word for word, against the front with a fake backend."""

import io
import subprocess
import sys
import threading

import httpx
import pytest
from PIL import Image

from deployments.api import create_api
from deployments.serve_file import read_serve_file
from tests.deployments.fake_backend import FakeBackend
from tests.deployments.http_server import serving
from tests.docs import blocks

ADDRESS = "127.0.0.1:8000"
QUICKSTART = read_serve_file("configs/quickstart.yaml").config


@pytest.fixture(scope="module")
def server():
    """A running server: (its address, the backend that draws)."""
    backend = FakeBackend()
    with serving(create_api(QUICKSTART, backend)) as address:
        yield address, backend


def run_example(word, address, folder) -> str:
    """What the page's only Python block with a word in it prints."""
    texts = [b.text for b in blocks("python") if b.page.name == "api.md" and word in b.text]
    (text,) = texts
    assert ADDRESS in text
    command = [sys.executable, "-c", text.replace(ADDRESS, address)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def format_of(file) -> str | None:
    return Image.open(io.BytesIO(file.read_bytes())).format


def test_a_picture_is_edited(server, tmp_path):
    address, backend = server
    Image.new("RGB", (128, 128), "green").save(tmp_path / "triangles.png")
    run_example("client.images.edit", address, tmp_path)
    assert format_of(tmp_path / "circle.webp") == "WEBP"
    assert (backend.jobs[-1].seed, len(backend.jobs[-1].inputs)) == (7, 1)


def test_previews_are_read_from_a_stream(server, tmp_path):
    run_example("stream=True, partial_images", server[0], tmp_path)
    names = ["preview-0.png", "preview-1.png", "preview-2.png", "triangles.png"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 4


def test_progress_is_read_by_id(server, tmp_path):
    address, backend = server
    backend.awaits_reader = True
    drawing = threading.Thread(
        target=httpx.post,
        args=(f"http://{address}/v1/images/generations",),
        kwargs={"json": {"prompt": "a circle"}, "headers": {"X-Request-Id": "mine"}, "timeout": 60},
    )
    drawing.start()
    while not backend.feeds:
        drawing.join(0.002)
    printed = run_example("/v1/requests/mine/events", address, tmp_path).splitlines()
    drawing.join()
    backend.awaits_reader = False
    steps = [line.split()[1] for line in printed if line.startswith("request.progress")]
    assert steps == [str(step) for step in range(1, 21)]
    assert printed[-1].startswith("request.ended")
