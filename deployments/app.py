"""Serve's entry point: one driver in front, one replica per card behind it.

The only file that binds deployments. It runs inside the cluster, so it sees what the cluster has.
(No postponed annotations here: Serve reads the builder's to make the configuration.)
"""

import logging
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from deployments.api_keys import ApiKeys
from deployments.config import AppConfig, CardsConfig
from deployments.driver import Driver
from deployments.errors import RETRY_AFTER_S, ConfigError
from deployments.model_check import check_model
from deployments.replica import DiffusionReplica
from deployments.starting import DRIVER

# Requests in the driver beside those that wait for a card: those that draw or ask how it stands.
# The driver itself counts who waits and says when to come back, so Serve's own limits lie above.
MARGIN = 1024
ROUTER = "deployments.router:FleetRouter"
SHUTDOWN_MARGIN_S = 30.0  # beyond the longest request that was admitted
logger = logging.getLogger("ray.serve")


def build_app(config: AppConfig) -> Application:
    """The application of one Serve file."""
    ApiKeys.of(config.server)  # read again by the driver; here a mistake stops the start
    check_model(config)
    return bind(config)


def bind(
    config: AppConfig, replica: type[DiffusionReplica] = DiffusionReplica, router: str = ROUTER
) -> Application:
    """Driver and replicas; another kind of replica or router is for comparisons."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    use_gpu = uses_gpu(config.cards, gpus)
    most = config.server.max_queued_requests + MARGIN
    shutdown_s = config.server.request_timeout_s + SHUTDOWN_MARGIN_S
    replicas = serve.deployment(
        replica,
        name=DiffusionReplica.__name__,
        num_replicas=num_replicas(config.cards, gpus, use_gpu),
        ray_actor_options=actor_options(config, use_gpu),
        max_ongoing_requests=1,
        max_queued_requests=most,
        graceful_shutdown_timeout_s=shutdown_s,
        health_check_period_s=5,
        request_router_config=RequestRouterConfig(
            request_router_class=router,
            request_routing_stats_period_s=0.5,
            max_backoff_s=0.1,
        ),
    )
    driver = serve.deployment(
        serve.ingress()(Driver),
        name=DRIVER,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=most,
        max_queued_requests=MARGIN,
        backpressure_config={"status_code": 429, "retry_after_s": RETRY_AFTER_S},
        graceful_shutdown_timeout_s=shutdown_s,
    )
    return driver.bind(config, replicas.bind(config, use_gpu))


def uses_gpu(cards: CardsConfig, gpus: int) -> bool:
    """Whether replicas take GPUs of this cluster; ConfigError where they could not start."""
    if cards.gpu == "require" and not gpus:
        logger.warning("cards.gpu is require and the cluster has no GPU yet: replicas wait for one")
    use_gpu = cards.gpu == "require" or (cards.gpu == "auto" and gpus > 0)
    if not use_gpu and not cards.simulated:
        raise ConfigError(
            f"cards.gpu is {cards.gpu}, the cluster has {gpus} GPUs, and cards.simulated is empty: "
            "start Ray where a GPU is, or name a simulated card"
        )
    return use_gpu


def num_replicas(cards: CardsConfig, gpus: int, use_gpu: bool) -> int:
    """As asked; ``auto`` is one per card."""
    if not use_gpu:
        return len(cards.simulated) if cards.replicas == "auto" else cards.replicas
    if cards.replicas == "auto":
        return max(1, gpus)
    if cards.gpu == "auto" and cards.replicas > gpus:
        raise ConfigError(
            f"cards.replicas is {cards.replicas} and the cluster has {gpus} GPUs: a replica "
            "without one would wait for ever"
        )
    return cards.replicas


def actor_options(config: AppConfig, use_gpu: bool) -> dict[str, Any]:
    """Resources and place of one replica."""
    # A simulated card asks for no CPU of Ray's, so that two of them start on any machine.
    options: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1} if use_gpu else {"num_cpus": 0}
    if config.placement.labels:
        options["label_selector"] = config.placement.labels
    if config.placement.fallback:
        selectors = [{"label_selector": labels} for labels in config.placement.fallback]
        options["fallback_strategy"] = selectors
    return options
