"""The README's curl and client calls, word for word, against the HTTP front with a fake backend."""

import io
import subprocess
import sys

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


def snippet(language, word, address):
    """The README's first block of a language with a word in it, sent to the test's server."""
    texts = [b.text for b in blocks(language) if b.page.name == "README.md" and word in b.text]
    assert ADDRESS in texts[0]
    return texts[0].replace(ADDRESS, address)


def drawn(folder):
    """The only picture in a folder."""
    (file,) = folder.glob("*.png")
    return Image.open(io.BytesIO(file.read_bytes()))


def test_the_curl_call_draws_a_picture_of_the_asked_size(server, tmp_path):
    address, backend = server
    script = snippet("sh", "curl", address)
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, check=True)
    picture = drawn(tmp_path)
    assert (picture.format, picture.size) == ("PNG", (128, 128))
    assert backend.jobs[-1].seed == 7


def test_the_client_call_draws_a_picture_of_the_asked_size(server, tmp_path):
    address, backend = server
    script = snippet("python", "openai", address)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    picture = drawn(tmp_path)
    assert (picture.format, picture.size) == ("PNG", (128, 128))
    assert backend.jobs[-1].prompt == "two green triangles"
