"""``serve run configs/quickstart.yaml`` as a user runs it: from another directory, to a picture."""

import base64
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from openai import NotFoundError, OpenAI
from PIL import Image

from deployments.paths import ROOT
from tests.deployments.conftest import free_port, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.e2e]


def on_free_port(folder: Path) -> tuple[Path, int]:
    """The very file, but for the port and, where there are GPUs, the simulated cards."""
    file = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    assert file["http_options"]["host"] == "127.0.0.1"
    port = file["http_options"]["port"] = free_port()
    file["applications"][0]["args"]["cards"]["gpu"] = "never"
    path = folder / "quickstart.yaml"
    path.write_text(yaml.safe_dump(file))
    return path, port


@pytest.fixture
def server(tmp_path):
    """Yields the URL and the process; stops it as Ctrl-C does."""
    path, port = on_free_port(tmp_path)
    log = (tmp_path / "log").open("wb")
    serve = Path(sys.executable).with_name("serve")
    process = subprocess.Popen(
        [serve, "run", "--address", "local", path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=log,
        stderr=log,
        # A shell's background job ignores Ctrl-C, and so would Python below it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        log.close()
        print((tmp_path / "log").read_text()[-4000:])


def is_ready(url: str, process: subprocess.Popen) -> bool:
    assert process.poll() is None, "serve run ended"
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_serve_run_draws_for_an_openai_client_and_stops_on_ctrl_c(server):
    url, process = server
    wait_for("serve run", lambda: is_ready(url, process), timeout_s=90)
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    drawn = client.images.generate(model="demo", prompt="a red circle", size="128x128", n=1)
    png = base64.b64decode(drawn.data[0].b64_json)
    assert Image.open(io.BytesIO(png)).size == (128, 128)
    with pytest.raises(NotFoundError, match="does not exist"):
        client.images.generate(model="another", prompt="a red circle")
    wait_for("both cards", lambda: cards(url) == {"mini-5090", "mini-4090"})
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def cards(url: str) -> set[str]:
    return {replica["card"]["name"] for replica in httpx.get(f"{url}/fleet").json()["replicas"]}
