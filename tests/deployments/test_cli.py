"""The commands do what the server does, print what a person needs, and exit with what happened."""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from deployments.cli import main
from deployments.config import ModelConfig
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.pipeline import LoadedPipeline, load_pipeline
from tests.deployments.serve_files import write_serve_file
from tests.deployments.tiny_pipelines import save_tiny_pipeline

MIB = 1 << 20
WISH: dict[str, Any] = {"text_encoder": 0.8, "transformer": "all", "vae": "all"}
PROMPT = "a red circle"
SEED = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("models") / "tiny", torch.float32)


@pytest.fixture(scope="module")
def config(folder: Path) -> str:
    return str(write_serve_file(folder.parent / "file.yaml", folder, components=WISH))


@pytest.fixture(scope="module")
def plain(folder: Path) -> bytes:
    """The picture that the pipeline alone draws."""
    job = GenerateJob(request_id="r", prompt=PROMPT, width=64, height=64, steps=2, seed=SEED)
    (image,) = _load(folder).generate(job, lambda step, of: None, lambda: False)
    return encode_png(image)


# --- generate --------------------------------------------------------------------------------
@pytest.mark.parametrize("card", [None, "small", "9MiB"])
def test_generate_draws_the_plain_pipelines_picture_on_every_card(
    card: str | None, config: str, plain: bytes, tmp_path: Path
) -> None:
    chosen = ["--card", card] if card else []
    output = tmp_path / "out.png"
    result = _run("generate", config, PROMPT, "-o", str(output), "--seed", str(SEED), *chosen)
    assert result.exit_code == 0, result.output
    assert output.read_bytes() == plain


def test_generate_prints_readiness_time_and_usage(config: str, tmp_path: Path) -> None:
    output = tmp_path / "out.png"
    result = _run("generate", config, PROMPT, "-o", str(output), "--seed", str(SEED))
    lines = result.stdout.splitlines()
    for component in WISH:
        assert any(
            re.match(rf"{component}: resident=\d+/\d+ \(permanent\)", line) for line in lines
        )
    assert lines[-1].startswith(f"{output}: 64x64, seed {SEED}, ")
    assert re.search(
        r"\d\.\d\d s after \d+\.\d\d s of loading; \d+\.\d KiB copied to the card, "
        r"\d\.\d\d s waited for copies, peak \d+\.\d MiB$",
        lines[-1],
    )


def test_generate_says_the_seed_that_draws_the_picture_again(config: str, tmp_path: Path) -> None:
    first, again = tmp_path / "first.png", tmp_path / "again.png"
    result = _run("generate", config, PROMPT, "-o", str(first))
    found = re.search(r"seed (\d+)", result.stdout)
    assert found is not None
    _run("generate", config, PROMPT, "-o", str(again), "--seed", found[1])
    assert again.read_bytes() == first.read_bytes()


def test_generate_takes_size_and_steps(config: str, tmp_path: Path) -> None:
    output = tmp_path / "out.png"
    options = ["--size", "96x32", "--steps", "1", "--seed", "1", "-o", str(output)]
    assert _run("generate", config, PROMPT, *options).exit_code == 0
    with Image.open(output) as image:
        assert image.size == (96, 32)


def test_generate_warns_of_what_has_no_effect(config: str, tmp_path: Path) -> None:
    options = ["--negative-prompt", "blue", "-o", str(tmp_path / "out.png")]
    result = _run("generate", config, PROMPT, *options)
    assert result.exit_code == 0
    assert "warning: negative_prompt has no effect" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "big"], "size is 'big'; give WIDTHxHEIGHT"),
        (["--size", "100x64"], "width is 100; QwenImage21Pipeline draws multiples of 32"),
        (["--guidance-scale", "3"], "QwenImage21Pipeline has no guidance_scale"),
        (["--card", "huge"], "neither a simulated card of the file (large, small), a card of"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_generate_refuses_with_one_message_and_writes_nothing(
    options: list[str], message: str, config: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.png"
    result = _run("generate", config, PROMPT, "-o", str(output), *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not output.exists()


def test_a_card_that_is_too_small_for_anything_is_refused_before_drawing(config: str) -> None:
    result = _run("generate", config, PROMPT, "--card", "64KiB")
    assert result.exit_code == 1
    assert re.search(r"Error: .*(text_encoder|transformer|vae)", result.stderr)


# --- fleet -----------------------------------------------------------------------------------
def test_fleet_shows_a_row_for_each_replica(server: str) -> None:
    result = _run("fleet", f"{server}/")
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split()[:3] == ["replica", "card", "free"]
    assert [row.split()[0] for row in rows] == ["r-1", "r-2"]
    assert "transformer 12/12 permanent, vae 8/8 forward" in rows[0]
    assert "0.25 s" in rows[0]
    assert "starting: placing vae 1/8" in rows[1]


def test_fleet_says_when_nobody_answers() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        result = _run("fleet", url)
    assert result.exit_code == 2
    assert f"{url} gave no fleet" in result.stderr


@pytest.mark.parametrize("page", ["wrong", "words"])
def test_fleet_says_when_something_else_answers(server: str, page: str) -> None:
    result = _run("fleet", f"{server}/{page}")
    assert result.exit_code == 2
    assert f"{server}/{page} gave no fleet" in result.stderr


# --- doctor ----------------------------------------------------------------------------------
def test_doctor_exits_with_0_where_all_is_ok(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = write_serve_file(tmp_path / "file.yaml", folder, port=port)
    result = _run("doctor", str(file))
    assert result.exit_code == 0, result.output
    assert {line.split()[1] for line in result.stdout.splitlines()} == {"ok"}


def test_doctor_exits_with_1_where_there_is_something_to_do() -> None:
    result = _run("doctor", "absent.yaml")
    assert result.exit_code == 1
    assert result.stdout.startswith("config       TO DO  there is no file absent.yaml")


# --- the command itself ----------------------------------------------------------------------
def test_a_missing_file_is_one_message() -> None:
    result = _run("plan", "absent.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: there is no file absent.yaml")


def test_the_command_runs_as_a_module_and_imports_no_torch_to_say_what_it_can() -> None:
    code = "import sys, deployments.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    command = [sys.executable, "-m", "deployments.cli", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in ("generate", "survey", "plan", "fleet", "doctor"):
        assert f"\n  {name} " in shown


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server whose fleet has a ready replica and one that starts."""
    listening = HTTPServer(("127.0.0.1", 0), FakeServer)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


class FakeServer(BaseHTTPRequestHandler):
    """Answers as the driver's ``/fleet`` does; ``/words/fleet`` with what is no JSON."""

    def do_GET(self) -> None:
        pages = {"/fleet": json.dumps({"replicas": [_ready(), _starting()]}), "/words/fleet": "hi"}
        self.send_response(200 if self.path in pages else 404)
        self.end_headers()
        self.wfile.write(pages.get(self.path, "").encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


def _ready() -> dict[str, Any]:
    return {
        "id": "r-1",
        "card": {"name": "mini", "memory_bytes": 24 * MIB, "free_bytes": 20 * MIB},
        "state": "ready",
        "detail": "",
        "components": [
            {"name": "transformer", "resident_layers": 12, "layers": 12, "lifetime": "permanent"},
            {"name": "vae", "resident_layers": 8, "layers": 8, "lifetime": "forward"},
        ],
        "latency": {"count": 3, "p50_s": 0.25, "p95_s": 0.3},
        "queue": 1,
        "served": 3,
    }


def _starting() -> dict[str, Any]:
    placing = {"state": "starting", "detail": "placing vae 1/8", "components": [], "latency": {}}
    return {**_ready(), **placing, "id": "r-2", "queue": 0, "served": 0}


def _load(folder: Path) -> LoadedPipeline:
    return load_pipeline(ModelConfig(name="tiny", path=str(folder), dtype="float32"))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)
