"""How a replica starts: where it is, whether it may use a GPU, its engine, and telling of progress.

Imports no torch before ``make_engine`` runs on the owner thread, where the import is timed.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import ray
from ray import serve

from deployments.config import AppConfig
from deployments.messages import ReplicaState
from deployments.neighbours import join_node
from deployments.pin_share import NodePinShare
from deployments.seats import take_seat
from deployments.stages import Stages
from offload import CardError, allocator_settings

if TYPE_CHECKING:
    from deployments.engine import Engine
    from offload import Card

Place = tuple[str, str | None, int]  # replica id, application (None: no cluster), seat

DRIVER = "Driver"  # the deployment that is told
REPORT_PERIOD_S = 1.0
LOG_PERIOD_S = 10.0
logger = logging.getLogger("ray.serve")


def place_in_fleet(num_seats: int) -> Place:
    """This replica's own, from Serve; a seat only where simulated cards are dealt out by it.

    From here on its neighbours on the node count it.
    """
    context = serve.get_replica_context()
    join_node(context.replica_id.unique_id)
    try:
        rank = context.rank
    except RuntimeError:  # Serve's local testing mode has no ranks
        return context.replica_id.unique_id, None, 0
    table = f"{ray.get_runtime_context().get_node_id()}-{context.app_name}"
    seat = take_seat(table, rank.rank, num_seats) if num_seats else rank.rank
    return context.replica_id.unique_id, context.app_name, seat


def check_gpu(use_gpu: bool) -> None:
    """CardError where Ray gave no GPU to a replica that is to use one."""
    if use_gpu and not ray.get_gpu_ids():
        raise CardError(
            "this replica was given no GPU, and would see every one of them: set cards.gpu in "
            "args, and leave ray_actor_options out of the Serve file (it replaces num_gpus)"
        )


def make_engine(config: AppConfig, name: str, rank: int, use_gpu: bool, stages: Stages) -> "Engine":
    """On the owner thread: import torch, then start."""
    if use_gpu:
        os.environ.update(allocator_settings(os.environ))  # read when torch first uses the card
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides no GPU from one that asked for none
    with stages.stage("import", "importing torch and diffusers"):
        from deployments.cards import find_card
        from deployments.engine import Engine

    def find() -> "Card":
        card = find_card(config.cards, rank=rank, use_gpu=use_gpu)
        card.pin_share = NodePinShare(join_node(name), config.pin_budget_bytes)
        return card

    return Engine(config, find, name=name, stages=stages)


class StartWatch:
    """Waits for an engine that starts, telling log and driver where it stands."""

    def __init__(self, app: str | None, stages: Stages, state: Callable[[], ReplicaState]) -> None:
        self._app = app
        self._stages = stages
        self._state = state
        self._logged_s = 0.0
        self._told: tuple[str, float] | None = None

    def result(self, starting: "Future[Engine]") -> "Engine":
        """The engine, or what its start raised."""
        while not wait([starting], timeout=REPORT_PERIOD_S).done:
            self._tell_driver()
            if self._stages.elapsed_s - self._logged_s >= LOG_PERIOD_S:
                self._logged_s = self._stages.elapsed_s
                logger.info("starting for %.0f s: %s", self._logged_s, self._stages.detail)
        engine = starting.result()
        logger.info(self._stages.summary())
        return engine

    def _tell_driver(self) -> None:
        """Only what is new; the driver may not be there yet, so nobody waits for its answer."""
        news = (self._stages.detail, self._stages.elapsed_s // LOG_PERIOD_S)
        if self._app is not None and news != self._told:
            self._told = news
            driver = serve.get_deployment_handle(DRIVER, self._app)
            driver.report.remote(self._state().to_dict())
