"""The simulated fleet: every request ends, and the driver's ranking beats Ray's own choice."""

import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from deployments.pace import Shape, Speed
from scripts.fleet_simulation import USUAL, Card, Job, poisson_jobs, simulate, uneven_fleet
from scripts.routing import by_rank, factories, invented

ROUTERS = factories(seed=1)


def card(id_: str, job_s: float) -> Card:
    """Draws the usual request in so many seconds, and its plan knows."""
    speed = Speed(picture_s=0.0, work_s=job_s / USUAL.work)
    return Card(id=id_, kind=id_, speed=speed, predicted_s=job_s)


def job(number: int, at_s: float) -> Job:
    return Job(id=str(number), at_s=at_s, shape=USUAL)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_request_ends_and_no_card_draws_two_at_once(name):
    cards, jobs = invented(num_cards=5, load=0.9, seed=3)
    spans: dict[str, list[tuple[float, float]]] = {one.id: [] for one in cards}

    def watched(cards, clock, start):
        def begin(job, card):
            seconds = card.speed.seconds_of(job.shape) * job.luck
            spans[card.id].append((clock.now_s, clock.now_s + seconds))
            start(job, card)

        return ROUTERS[name](cards, clock, begin)

    run = simulate(cards, jobs, watched)
    assert len(run.latencies_s) == len(jobs) == run.chosen.total()
    for own in spans.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))


@pytest.mark.parametrize("name", ROUTERS)
def test_one_request_on_one_card_takes_what_the_card_takes(name):
    # Ray's choice picks two at random, so there are two alike.
    run = simulate([card("a", 3.0), card("b", 3.0)], [job(0, 5.0)], ROUTERS[name])
    assert run.latencies_s == (pytest.approx(3.0),)
    assert run.makespan_s == pytest.approx(3.0)


def test_rank_waits_for_the_fast_card_where_that_ends_sooner():
    """At 0 s and 1 s: the second waits 1 s and draws 2 s, instead of 20 s on the slow one."""
    run = simulate([card("fast", 2.0), card("slow", 20.0)], [job(0, 0.0), job(1, 1.0)], by_rank)
    assert run.chosen == Counter(fast=2)
    assert run.latencies_s == (pytest.approx(2.0), pytest.approx(3.0))


def test_rank_learns_that_a_plan_was_too_hopeful():
    """It thinks the slow card is the faster one, until a job has ended there."""
    wrong = replace(card("slow", 20.0), predicted_s=1.0)
    jobs = [job(number, 30.0 * number) for number in range(5)]
    run = simulate([card("fast", 2.0), wrong], jobs, by_rank)
    assert run.chosen == Counter(slow=1, fast=4)


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_rank_beats_the_power_of_two_choices_on_an_uneven_fleet(load):
    means, late = {}, {}
    for name, router in ROUTERS.items():
        runs = [simulate(*invented(32, load, seed), router) for seed in (1, 2)]
        means[name] = statistics.fmean(s for run in runs for s in run.latencies_s)
        late[name] = statistics.fmean(run.quantile_s(95) for run in runs)
    assert means["rank"] < 0.95 * means["power of two"]
    assert late["rank"] < 0.75 * late["power of two"]


def test_requests_come_as_often_as_the_load_says():
    cards = uneven_fleet(6, random.Random(1))
    jobs = poisson_jobs(cards, 0.5, 4000, random.Random(1))
    work_s = statistics.fmean(  # of one request, were it spread over all cards by their speed
        1 / sum(1 / one.speed.seconds_of(entry.shape) for one in cards) for entry in jobs
    )
    assert work_s * len(jobs) / jobs[-1].at_s == pytest.approx(0.5, rel=0.05)
    assert Shape(pixels=512 * 512, steps=20) in {entry.shape for entry in jobs}
