"""Before torch is imported in a replica: what its environment says of the card."""

import os

import pytest

from deployments import starting
from deployments.config import AppConfig
from deployments.neighbours import Node
from deployments.stages import Stages
from offload import CardError

CONFIG = AppConfig.model_validate(
    {"model": {"name": "demo"}, "cards": {"simulated": [{"name": "mini", "memory": "1MiB"}]}}
)


class Made:
    """Stands in for the engine, and notes the environment that it was made in."""

    def __init__(self, config, find, *, name, stages) -> None:
        self.environ = dict(os.environ)
        self.find = find


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr("deployments.engine.Engine", Made)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def make(*, use_gpu: bool) -> dict[str, str]:
        return starting.make_engine(CONFIG, "replica", 0, use_gpu, Stages()).environ

    return make


def test_with_a_gpu_segments_are_expandable(made) -> None:
    environ = made(use_gpu=True)
    assert environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "CUDA_VISIBLE_DEVICES" not in environ


def test_what_the_user_set_for_the_allocator_is_kept(made, monkeypatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    environ = made(use_gpu=True)
    assert environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:512,expandable_segments:True"


def test_an_allocator_without_statistics_is_refused(made, monkeypatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    with pytest.raises(CardError, match="cudaMallocAsync"):
        made(use_gpu=True)


def test_the_card_locks_what_the_file_allows(made, monkeypatch, tmp_path) -> None:
    node = Node("replica", tmp_path)
    monkeypatch.setattr(starting, "join_node", lambda name: node)
    config = CONFIG.model_copy(update={"pin_budget": "3MiB"})
    card = starting.make_engine(config, "replica", 0, False, Stages()).find()
    assert card.pin_share.ask(9 << 20).num_bytes == 3 << 20
    assert node.own.host_bytes == 9 << 20
    node.leave()


def test_without_a_gpu_none_is_seen(made) -> None:
    assert made(use_gpu=False)["CUDA_VISIBLE_DEVICES"] == ""
