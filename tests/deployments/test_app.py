"""What the builder decides from the configuration and from what the cluster has."""

import pytest
from ray import serve

from deployments.app import actor_options, num_replicas, uses_gpu
from deployments.config import AppConfig, CardsConfig
from deployments.errors import ConfigError
from deployments.replica import DiffusionReplica

TWO = {"simulated": [{"name": "a", "memory": 8}, {"name": "b", "memory": 8}]}


def cards(**fields) -> CardsConfig:
    return CardsConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("gpu", "gpus", "expected"),
    [
        ("auto", 0, False),
        ("auto", 2, True),
        ("never", 2, False),
        ("require", 2, True),
        ("require", 0, True),
    ],
)
def test_one_file_serves_machines_with_and_without_gpus(gpu, gpus, expected):
    assert uses_gpu(cards(gpu=gpu, **TWO), gpus) is expected


@pytest.mark.parametrize(("gpu", "gpus"), [("auto", 0), ("never", 2)])
def test_no_card_at_all_is_refused_before_anything_waits_for_one(gpu, gpus):
    with pytest.raises(ConfigError, match=r"cards.simulated is empty"):
        uses_gpu(cards(gpu=gpu), gpus)


@pytest.mark.parametrize(
    ("fields", "gpus", "use_gpu", "expected"),
    [
        (TWO, 0, False, 2),
        ({**TWO, "replicas": 3}, 0, False, 3),
        (TWO, 4, True, 4),
        ({"gpu": "require"}, 0, True, 1),
        ({"gpu": "require", "replicas": 5}, 2, True, 5),
        ({"replicas": 1}, 2, True, 1),
    ],
)
def test_automatic_is_one_replica_per_card(fields, gpus, use_gpu, expected):
    assert num_replicas(cards(**fields), gpus, use_gpu) == expected


def test_more_replicas_than_gpus_are_refused_where_no_more_will_come():
    with pytest.raises(ConfigError, match="2 GPUs"):
        num_replicas(cards(replicas=3), 2, True)


def config(**placement) -> AppConfig:
    return AppConfig.model_validate({"model": {"name": "demo"}, "placement": placement})


def test_a_gpu_replica_takes_one_gpu_and_a_simulated_one_nothing():
    assert actor_options(config(), use_gpu=True)["num_gpus"] == 1
    assert actor_options(config(), use_gpu=False) == {"num_cpus": 0}


@pytest.mark.parametrize("use_gpu", [True, False])
def test_ray_accepts_what_a_replica_asks_for(use_gpu):
    placed = config(labels={"tenure/card": "5090"}, fallback=[{"tenure/card": "4090"}])
    options = actor_options(placed, use_gpu)
    deployment = serve.deployment(DiffusionReplica, ray_actor_options=options)
    assert deployment.ray_actor_options == options


def test_placement_becomes_labels_and_fallbacks_of_ray():
    placed = config(labels={"tenure/card": "5090"}, fallback=[{"tenure/card": "4090"}])
    options = actor_options(placed, use_gpu=True)
    assert options["label_selector"] == {"tenure/card": "5090"}
    assert options["fallback_strategy"] == [{"label_selector": {"tenure/card": "4090"}}]
