"""Every living replica of the node is seen with what it says of itself; a dead one is not."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import neighbours
from deployments.neighbours import Neighbour, Node, join_node

MEMBER = """
import sys
from pathlib import Path
from deployments.neighbours import Node
node = Node(sys.argv[2], Path(sys.argv[1]))
with node.looking():
    node.say(loading_bytes=5, pinned_bytes=7)
print(node.own.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node("mine", tmp_path)
    yield node
    node.leave()


def others(node: Node) -> list[Neighbour]:
    with node.looking() as found:
        return found


def test_another_process_is_seen_until_it_is_killed(tmp_path: Path, node: Node) -> None:
    assert others(node) == []
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(tmp_path), "theirs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert others(node) == [Neighbour(name="theirs", pid=pid, loading_bytes=5, pinned_bytes=7)]
    process.kill()  # -9: the system lets go of its lock
    process.communicate()
    assert others(node) == []
    assert len(list(tmp_path.glob("*.replica"))) == 1  # nothing of it is left


def test_what_one_says_replaces_what_it_said_before(tmp_path: Path, node: Node) -> None:
    other = Node("other", tmp_path)
    with node.looking():
        node.say(pinned_bytes=1 << 40)
        node.say(loading_bytes=3)
        node.say(pinned_bytes=1)
    assert others(other) == [
        Neighbour(name="mine", pid=node.own.pid, loading_bytes=3, pinned_bytes=1)
    ]
    other.leave()
    assert others(node) == []


def test_what_another_version_wrote_counts_for_nothing(tmp_path: Path, node: Node) -> None:
    other = Node("other", tmp_path)
    other._file.write_text('{"name": "other", "pid": 1, "unheard_of": 2}')
    assert others(node) == []
    other._file.write_text("not even JSON")
    assert others(node) == []
    assert other._file.exists()  # it lives
    other.leave()


def test_it_is_seen_again_after_its_files_were_cleaned_away(tmp_path: Path, node: Node) -> None:
    other = Node("other", tmp_path)
    shutil.rmtree(tmp_path)
    for one in (node, other):
        with one.looking():
            one.say(pinned_bytes=4)
    assert [seen.name for seen in others(node)] == ["other"]
    assert [seen.pinned_bytes for seen in others(other)] == [4]
    other.leave()


def test_a_process_joins_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_joined", [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    node = join_node("one")
    assert join_node("another name") is node
    assert node.own.name == "one"
    node.leave()


def test_it_is_named_as_in_a_message() -> None:
    assert str(Neighbour(name="abc", pid=12)) == "replica abc (process 12)"
