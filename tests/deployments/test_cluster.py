"""The application on a real Ray cluster: two simulated cards, jobs, deaths and redeployments.

The last tests change the cluster; they leave two ready replicas behind.
"""

import base64
import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import ray
from PIL import Image

from deployments.openness import serve_host
from tests.deployments.conftest import APP, deploy, quickstart_args, wait_for

pytestmark = pytest.mark.ray
LONG = {"num_inference_steps": 50, "n": 4}


def lifetimes(replica) -> dict[str, str]:
    return {component["name"]: component["lifetime"] for component in replica["components"]}


def pin(replica) -> dict[str, str]:
    return {"X-Tenure-Replica": replica["id"]}


def picture(answer) -> bytes:
    return base64.b64decode(answer.json()["data"][0]["b64_json"])


def busy(server):
    return next((r for r in server.fleet()["replicas"] if r["state"] == "busy"), None)


def pid_of(replica_id: str) -> int:
    actor = ray.get_actor(f"SERVE_REPLICA::{APP}#DiffusionReplica#{replica_id}", namespace="serve")
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def test_two_cards_have_two_plans_with_wish_choice_and_reason(server):
    cards = server.wait_until_ready()
    large, small = cards["mini-5090"], cards["mini-4090"]
    assert lifetimes(large)["text_encoder"] == "permanent"
    assert lifetimes(small)["text_encoder"] != "permanent"
    for replica in (large, small):
        for component in replica["components"]:
            assert component["wish"] == replica["wish"][component["name"]]
            assert component["why"]
        assert replica["explanation"]
        assert {"import", "detect", "wait", "load", "place", "warm-up"} <= set(replica["stages"])


def test_the_same_seed_gives_the_same_bytes_from_every_card(server):
    answers = {
        name: server.draw(headers=pin(replica))
        for name, replica in server.wait_until_ready().items()
    }
    assert len({picture(answer) for answer in answers.values()}) == 1
    for name, answer in answers.items():
        assert answer.headers["X-Tenure-Replica"] == server.wait_until_ready()[name]["id"]
        assert Image.open(io.BytesIO(picture(answer))).size == (128, 128)


def test_requests_at_the_same_time_are_drawn_on_both_cards(server):
    server.wait_until_ready()
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda seed: server.draw(seed=seed, n=4), range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["X-Tenure-Replica"] for answer in answers}) == 2


def test_every_request_ends_in_exactly_one_way_and_the_sums_are_the_clients_own(server):
    server.wait_until_ready()
    before = server.fleet()["totals"]["requests"]
    wrong = {"served": {}, "refused": {"size": "9999x9999"}}
    sent = ["served", "refused", "served", "refused", "served"]
    with ThreadPoolExecutor() as pool:
        statuses = list(pool.map(lambda how: server.draw(**wrong[how]).status_code, sent))
    assert statuses == [{"served": 200, "refused": 400}[how] for how in sent]
    after = server.fleet()["totals"]["requests"]
    ended = {how: after[how] - before[how] for how in after}
    assert ended == {"served": 3, "refused": 2, "failed": 0, "cancelled": 0}


def test_headers_name_request_and_replica_once(server):
    answer = server.draw(headers={"X-Request-Id": "mine"})
    assert answer.headers.get_list("X-Request-Id") == ["mine"]
    lost = server.draw(headers={"X-Tenure-Replica": "nobody"})
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "replica_not_found")


def test_the_address_that_is_warned_of_is_the_one_that_serve_listens_on(server):
    assert serve_host() == "127.0.0.1"


def test_what_only_the_pipeline_knows_is_refused_as_the_clients_mistake(server):
    answer = server.draw(size="100x100")
    assert answer.status_code == 400
    assert "multiples of" in answer.json()["error"]["message"]


def test_a_running_request_is_stopped_by_its_id_within_a_step(server):
    server.wait_until_ready()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.draw, headers={"X-Request-Id": "long"}, **LONG)
        wait_for("a busy replica", lambda: busy(server))
        began = time.monotonic()
        assert server.client.delete("/v1/requests/long").status_code == 200
        answer = running.result()
    assert answer.json()["error"]["code"] == "request_cancelled"
    assert answer.headers["x-should-retry"] == "false"
    assert time.monotonic() - began < 2.0
    server.wait_until_ready()


def test_a_client_that_hangs_up_stops_its_job(server):
    server.wait_until_ready()
    cancelled = server.fleet()["totals"]["cancelled"]
    with pytest.raises(httpx.ReadTimeout):
        server.client.post(
            "/v1/images/generations",
            json={"prompt": "a circle", **LONG},
            timeout=1.0,
        )
    wait_for("the cancel", lambda: server.fleet()["totals"]["cancelled"] == cancelled + 1)


ELSEWHERE = """
import sys
sys.modules["deployments"] = sys.modules["offload"] = None  # not installed here
import ray
from ray import serve
ray.init(address=sys.argv[1], namespace="serve", log_to_driver=False)
handle = serve.get_app_handle("tenure")
request = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 7}
answer = handle.generate.remote(request).result()
sys.stdout.buffer.write(answer["images"][0]["png"])
assert answer["images"][0]["seed"] == 7, answer
assert answer["usage"]["copied_bytes"] > 0 and answer["replica"] and answer["warnings"] == []
try:
    handle.generate.remote({"prompt": "a", "size": "9999x9999"}).result()
except ValueError as error:
    assert "the limit is 16384" in str(error), error
else:
    raise AssertionError("no error")
fleet = handle.fleet.remote().result()
assert fleet["totals"]["requests"]["refused"] > 0, fleet["totals"]
assert all(one["explanation"] and one["card"]["name"] for one in fleet["replicas"])
"""


def test_another_ray_program_without_this_package_draws_by_handle(server, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, ray.get_runtime_context().gcs_address],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout == picture(server.draw())


def test_metrics_are_told_by_the_driver_and_through_ray(server):
    server.draw()
    own = server.client.get("/metrics").text
    assert "tenure_fleet_job_seconds_count" in own
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def told() -> bool:
        text = httpx.get(url).text
        wanted = ('lifetime="permanent"', 'component="vae"', 'card="mini-5090"')
        return "ray_tenure_replica_jobs_total" in text and any(
            line.startswith("ray_tenure_memory_bytes{") and all(label in line for label in wanted)
            for line in text.splitlines()
        )

    wait_for("Ray's metrics", told, timeout_s=20)


def test_a_killed_replica_loses_no_request_and_comes_back_with_a_plan(server):
    before = server.wait_until_ready()
    retried = server.fleet()["totals"]["retried"]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.draw, **LONG)
        victim = wait_for("a busy replica", lambda: busy(server))
        os.kill(pid_of(victim["id"]), signal.SIGKILL)
        assert running.result().status_code == 200
    wait_for("its end", lambda: victim["id"] not in [r["id"] for r in server.fleet()["replicas"]])
    after = server.wait_until_ready()
    assert after[victim["card"]["name"]]["id"] != victim["id"]
    assert {name: lifetimes(r) for name, r in after.items()} == {
        name: lifetimes(r) for name, r in before.items()
    }
    assert server.fleet()["totals"]["retried"] == retried + 1


def test_a_redeployment_lets_admitted_requests_end_and_swapped_sizes_swap_the_plans(server):
    before = server.wait_until_ready()
    args = quickstart_args()
    one, two = args["cards"]["simulated"]
    one["memory"], two["memory"] = two["memory"], one["memory"]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.draw, **LONG)
        wait_for("a busy replica", lambda: busy(server))
        deploy(args)
        assert running.result().status_code == 200
    old = {replica["id"] for replica in before.values()}

    def swapped():
        ready = server.ready()
        ids = {replica["id"] for replica in ready.values()}
        return ready if len(ready) == 2 and not ids & old else None

    after = wait_for("the new replicas", swapped)
    assert lifetimes(after["mini-5090"]) == lifetimes(before["mini-4090"])
    assert lifetimes(after["mini-4090"]) == lifetimes(before["mini-5090"])
