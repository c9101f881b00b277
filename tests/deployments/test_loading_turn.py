"""Replicas load beside each other where host memory suffices, by turns where not, and never hang.

Two real processes; what is free is read from a file that the test writes.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments import loading_turn as module
from deployments.config import AppConfig
from deployments.host import HostMemory
from deployments.loading import check_model_folder
from deployments.loading_turn import BESIDE_WEIGHTS_BYTES, LoadingTurn, bytes_to_load, loading_turn
from deployments.neighbours import Node
from deployments.paths import resolve
from deployments.stages import Stages

GIB = 1 << 30
DEMO = AppConfig.model_validate(
    {
        "model": {"name": "demo", "path": "deployments/demo/checkpoint", "dtype": "float32"},
        "defaults": {"size": "128x128"},
    }
)
LOADER = """
import sys
from pathlib import Path
from deployments.host import HostMemory
from deployments.loading_turn import LoadingTurn
from deployments.neighbours import Node

folder, name, needed, free = sys.argv[1:]

def read():
    free_bytes = int(Path(free).read_text())
    return HostMemory(total_bytes=1 << 40, limit_bytes=None, available_bytes=free_bytes)

def tell(line):
    print(line, flush=True)

node = Node(name, Path(folder))
turn = LoadingTurn(node, int(needed) or None, tell=tell, read=read)
turn.begin()
print("began", flush=True)
sys.stdin.readline()
turn.end()
print("ended", flush=True)
sys.stdin.readline()
"""


class Loader:
    """A replica's process that loads until it is told that everything is there."""

    def __init__(self, folder: Path, name: str, needed_bytes: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOADER, folder / "node", name, str(needed_bytes), free(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def until_began(self) -> None:
        while (line := self.line()) != "began":
            assert line.startswith("waiting"), line

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.line() == "ended"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Load = Callable[[str, int], Loader]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    made: list[Loader] = []

    def load_(name: str, needed_bytes: int) -> Loader:
        made.append(Loader(tmp_path, name, needed_bytes))
        return made[-1]

    yield load_
    for loader in made:
        loader.kill()


def free(folder: Path, num_bytes: int | None = None) -> Path:
    file = folder / "free"
    if num_bytes is not None:
        file.write_text(str(num_bytes))
    return file


def test_two_that_fit_load_beside_each_other(tmp_path: Path, load: Load) -> None:
    free(tmp_path, 50 * GIB)
    first, second = load("a", 20 * GIB), load("b", 30 * GIB)
    first.until_began()
    assert second.line() == "began"  # not one line of waiting


def test_the_second_waits_until_the_first_is_done_and_says_for_whom(
    tmp_path: Path, load: Load
) -> None:
    free(tmp_path, 50 * GIB)
    first = load("a", 20 * GIB)
    first.until_began()
    second = load("b", 40 * GIB)
    assert second.line() == (
        "waiting for host memory: loading takes up to 40.00 GiB, 50.00 GiB are free, and replica a "
        f"(process {first.process.pid}) loads and may take 20.00 GiB of it"
    )
    assert second.line().startswith("waiting")  # it goes on looking
    free(tmp_path, 30 * GIB)  # what the first one took is no longer free
    first.finish()
    second.until_began()  # it does not fit even so: nobody else loads


def test_one_that_is_killed_while_it_loads_holds_nobody_up(tmp_path: Path, load: Load) -> None:
    free(tmp_path, 50 * GIB)
    first, second = load("a", 50 * GIB), load("b", 50 * GIB)
    waiting, loading = (first, second) if first.line() != "began" else (second, first)
    assert waiting.line().startswith("waiting")
    loading.kill()
    waiting.until_began()


def test_of_two_that_never_fit_both_load_one_after_the_other(tmp_path: Path, load: Load) -> None:
    free(tmp_path, 1 * GIB)
    loaders = [load("a", 50 * GIB), load("b", 50 * GIB)]
    if loaders[0].line() != "began":
        loaders.reverse()
        assert loaders[0].line() == "began"
    first, second = loaders
    first.finish()
    second.until_began()


def test_whose_need_is_not_known_loads_alone(tmp_path: Path, load: Load) -> None:
    free(tmp_path, 1 << 40)
    first = load("a", 0)
    first.until_began()
    second = load("b", 1)
    assert second.line().startswith("waiting for host memory")
    first.finish()
    second.until_began()
    third = load("c", 0)
    assert "how much loading takes is not known before the download" in third.line()
    second.finish()
    third.until_began()


def test_memory_that_comes_free_meanwhile_ends_the_wait(tmp_path: Path, load: Load) -> None:
    free(tmp_path, 50 * GIB)
    load("a", 30 * GIB).until_began()
    second = load("b", 30 * GIB)
    assert second.line().startswith("waiting")
    free(tmp_path, 60 * GIB)
    second.until_began()


# --- in this process -------------------------------------------------------------------------
@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node("mine", tmp_path)
    yield node
    node.leave()


def begin(node: Node, needed_bytes: int | None, memory: HostMemory | None) -> None:
    LoadingTurn(node, needed_bytes, tell=pytest.fail, read=lambda: memory).begin()


def memory(free_bytes: int, limit_bytes: int | None = None) -> HostMemory:
    return HostMemory(total_bytes=1 << 40, limit_bytes=limit_bytes, available_bytes=free_bytes)


def test_what_fits_not_even_alone_is_warned_of_with_what_to_do(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        begin(node, 12 * GIB, memory(8 * GIB, limit_bytes=9 * GIB))
    (record,) = caplog.records
    assert record.getMessage() == (
        "loading takes up to 12.00 GiB of host memory and 8.00 GiB are free under the container's "
        "memory limit: it may be killed. Give it 4.00 GiB more, run fewer replicas on this node, "
        "or load in a dtype that is smaller or that of the files"
    )
    assert node.own.loading_bytes == 12 * GIB


@pytest.mark.parametrize("needed_bytes", [8 * GIB, None])
def test_nothing_is_warned_of_what_fits_or_is_not_known(
    node: Node, needed_bytes: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    begin(node, needed_bytes, memory(8 * GIB))
    assert caplog.records == []


def test_where_the_system_does_not_tell_nobody_waits(tmp_path: Path, node: Node) -> None:
    other = Node("other", tmp_path)
    with other.looking():
        other.say(loading_bytes=1 << 50)
    begin(node, 5, None)
    begin(node, None, None)
    assert node.own.loading_bytes > 0
    other.leave()


def test_loading_takes_all_weights_in_their_new_dtype_and_something_beside() -> None:
    folder = check_model_folder(Path(resolve(DEMO.model.source)))
    weights = 2 * sum(part.weight_bytes for part in folder.components.values())  # from bfloat16
    needed = bytes_to_load(DEMO.model)
    assert needed is not None
    assert weights + BESIDE_WEIGHTS_BYTES < needed < 1.2 * weights + BESIDE_WEIGHTS_BYTES


def test_what_may_be_downloaded_first_is_not_known() -> None:
    model = DEMO.model.model_copy(update={"path": "some/model", "local_files_only": False})
    assert bytes_to_load(model) is None


def test_the_turn_ends_with_the_block_whatever_happens_and_is_a_stage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "join_node", lambda name: node)
    stages = Stages()

    def fail() -> None:
        with loading_turn(DEMO, "mine", stages):
            assert node.own.loading_bytes == bytes_to_load(DEMO.model)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert node.own.loading_bytes == 0
    assert "wait" in stages.seconds
    with loading_turn(DEMO, "mine", stages) as turn:
        turn.end()  # everything has its place before the first picture
        assert node.own.loading_bytes == 0


def test_whoever_waits_is_seen_waiting(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, stages = Node("other", tmp_path), Stages()
    with other.looking():
        other.say(loading_bytes=1 << 50)

    def sleep(_: float) -> None:
        assert "replica other" in stages.detail
        with other.looking():
            other.say(loading_bytes=0)

    began_s = time.monotonic()
    LoadingTurn(node, 5, tell=stages.tell, read=lambda: memory(GIB), sleep=sleep).begin()
    assert time.monotonic() - began_s < 10
    other.leave()
