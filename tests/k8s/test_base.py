"""k8s/base says what a cluster must know: the very config, one image, memory, safe timing."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.serve.schema import ServeDeploySchema

from deployments.config import AppConfig
from tests.k8s.manifests import ROOT, build, quantity

CONFIG = ROOT / "configs/qwen-image-2.1.yaml"
GIB = 2**30
REPLICA_BYTES = 6 * GIB  # torch, diffusers and a request's own tensors on the host
RAY_BYTES = 2 * GIB
# Transformer and text encoder in bfloat16, VAE in float32: every weight of Qwen-Image-2.1.
MODEL_BYTES = (13.25 + 16.3 + 1.26) * GIB


@pytest.fixture(scope="module")
def serve_config(base):
    return yaml.safe_load(base.the("RayService")["spec"]["serveConfigV2"])


@pytest.fixture(scope="module")
def app_config(serve_config):
    (application,) = serve_config["applications"]
    return AppConfig.model_validate(application["args"])


def annotation(group, key):
    return group["template"]["metadata"]["annotations"][key]


def object_store_bytes(group):
    return int(group["rayStartParams"]["object-store-memory"])


def ray_containers(base):
    owners = [base.cluster["headGroupSpec"], *base.groups]
    return [owner["template"]["spec"]["containers"][0] for owner in owners]


def test_the_serve_config_is_the_very_text_of_the_file(base):
    assert base.the("RayService")["spec"]["serveConfigV2"] == CONFIG.read_text()


def test_only_what_a_cluster_takes_is_built(base):
    kinds = sorted(d["kind"] for d in base.documents)
    assert kinds == ["Job", "PersistentVolumeClaim", "PodDisruptionBudget", "RayService"]


def test_serve_reads_every_key_of_the_config(serve_config):
    read = ServeDeploySchema.model_validate(serve_config).model_dump(exclude_unset=True)
    assert ignored(serve_config, read) == []


def ignored(given, read, path=""):
    """Keys that were given and did not arrive: Serve drops what it does not know."""
    if isinstance(given, list):
        pairs = zip(given, read, strict=True)
        return [k for i, (g, r) in enumerate(pairs) for k in ignored(g, r, f"{path}[{i}]")]
    if not isinstance(given, dict):
        return []
    lost = [f"{path}.{key}" for key in given if key not in read]
    both = [key for key in given if key in read]
    return lost + [k for key in both for k in ignored(given[key], read[key], f"{path}.{key}")]


def test_a_key_that_serve_ignores_would_be_seen():
    given = {"applications": [{"name": "a", "import_path": "m:a", "numReplicas": 2}]}
    read = ServeDeploySchema.model_validate(given).model_dump(exclude_unset=True)
    assert ignored(given, read) == [".applications[0].numReplicas"]


def test_the_application_is_ours_and_its_args_are_valid(serve_config, app_config):
    (application,) = serve_config["applications"]
    assert application["import_path"] == "deployments.app:build_app"
    assert app_config.cards.gpu == "require"  # never a simulated card in a cluster


def test_every_worker_is_ready_because_each_node_has_a_proxy(serve_config, base):
    assert serve_config.get("proxy_location", "EveryNode") == "EveryNode"
    assert base.the("RayService")["spec"]["excludeHeadPodFromServeSvc"] is True


def test_the_proxies_listen_on_the_pods_address(serve_config):
    assert serve_config.get("http_options", {}).get("host", "0.0.0.0") == "0.0.0.0"


def test_one_ray_version_everywhere(base):
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    version = base.cluster["rayVersion"]
    assert version == pinned[1]
    images = {container["image"] for container in base.containers()}
    assert images == {f"tenure:{project}-ray{version}"}


def test_the_head_runs_nothing_and_has_no_gpu(base):
    head = base.cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == head["rayStartParams"]["num-gpus"] == "0"
    (container,) = head["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "gcs-server": 6379,
        "dashboard": 8265,
        "client": 10001,
        "serve": 8000,
        "metrics": 8080,
    }


def test_requests_equal_limits_in_every_container(base):
    for container in base.containers():
        resources = container["resources"]
        assert resources["requests"] == resources["limits"], container["name"]


def test_each_group_is_one_card_class_that_the_placement_admits(base, app_config):
    placement = app_config.placement
    for group in base.groups:
        labels = group["labels"]
        assert set(labels) == {"tenure/card"}
        selectors = [placement.labels, *placement.fallback]
        assert any(selector.items() <= labels.items() for selector in selectors)
    assert len({group["groupName"] for group in base.groups}) == len(base.groups)


def test_one_card_per_worker_where_ray_and_kubernetes_look(base):
    for group in base.groups:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == group["rayStartParams"]["num-gpus"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_ray_itself_sees_the_card_and_the_label_of_each_group(base):
    resource = {"metadata": {"name": "tenure", "namespace": "default"}, "spec": base.cluster}
    nodes = _derive_autoscaling_config_from_ray_cr(resource)["available_node_types"]
    assert nodes["headgroup"]["resources"] | {"memory": 0} == {"CPU": 0, "GPU": 0, "memory": 0}
    for group in base.groups:
        node = nodes[group["groupName"]]
        assert node["resources"]["GPU"] == 1
        assert node["labels"] == group["labels"]


def test_the_memory_limit_holds_host_copies_object_store_replicas_and_ray(base):
    for group in base.groups:
        container = group["template"]["spec"]["containers"][0]
        host_store = quantity(annotation(group, "tenure/host-store"))
        assert host_store >= MODEL_BYTES
        replicas = int(group["rayStartParams"]["num-gpus"])
        needed = host_store + object_store_bytes(group) + replicas * REPLICA_BYTES + RAY_BYTES
        # Ray's monitor kills at 95 % of the limit.
        assert quantity(container["resources"]["limits"]["memory"]) >= needed / 0.9


def test_shared_memory_holds_the_object_store_and_no_more_than_it_must(base):
    for owner in (base.cluster["headGroupSpec"], *base.groups):
        (shm,) = [v for v in owner["template"]["spec"]["volumes"] if v["name"] == "shm"]
        assert shm["emptyDir"]["medium"] == "Memory"
        assert quantity(shm["emptyDir"]["sizeLimit"]) == object_store_bytes(owner) + GIB


def test_every_mount_names_a_volume_of_its_pod(base):
    for template in base.pod_templates():
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts <= volumes, container["name"]


def test_the_longest_request_is_finished_before_a_pod_or_cluster_goes(base, app_config):
    longest_s = app_config.server.request_timeout_s
    assert base.the("RayService")["spec"]["rayClusterDeletionDelaySeconds"] > longest_s
    for group in base.groups:
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > longest_s


def test_a_starting_cluster_is_given_an_hour(base):
    annotations = base.the("RayService")["metadata"]["annotations"]
    assert annotations["ray.io/initializing-timeout"] == "60m"


def test_the_upgrade_strategy_is_chosen_on_purpose(base):
    assert base.the("RayService")["spec"]["upgradeStrategy"] == {"type": "NewCluster"}


def test_the_job_fetches_the_model_that_is_served_and_workers_wait_for_it(base, app_config):
    (container,) = base.the("Job")["spec"]["template"]["spec"]["containers"]
    (script,) = container["command"][2:]
    revision = f" --revision {app_config.model.revision}" if app_config.model.revision else ""
    assert script.startswith(f"hf download {app_config.model.source}{revision} && ")
    marker = re.search(r"touch (\S+)$", script)[1]
    assert app_config.model.local_files_only
    for group in base.groups:
        spec = group["template"]["spec"]
        assert f"-f {marker} " in spec["initContainers"][0]["command"][2]
        worker = spec["containers"][0]
        environment = {item["name"]: item["value"] for item in worker["env"]}
        assert environment == {"HF_HOME": str(Path(marker).parent), "HF_HUB_OFFLINE": "1"}


def test_workers_cannot_write_the_weights_and_only_the_job_sees_the_token(base):
    for group in base.groups:
        for container in group["template"]["spec"]["containers"]:
            mounts = {m["name"]: m for m in container["volumeMounts"]}
            assert mounts["weights"]["readOnly"] is True
            assert not any("valueFrom" in item for item in container["env"])


def test_the_disruption_budget_covers_the_workers_and_only_them(base):
    budget = base.the("PodDisruptionBudget")["spec"]
    wanted = budget["selector"]["matchLabels"].items()
    covered = [wanted <= t["metadata"]["labels"].items() for t in base.pod_templates()]
    assert covered == [False, *[True] * len(base.groups), False]
    assert budget["maxUnavailable"] == 1


def test_names_fit_what_kuberay_appends_to_them(base):
    names = [base.the("RayService")["metadata"]["name"], *(g["groupName"] for g in base.groups)]
    for name in names:
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 47


def test_a_broken_kustomization_is_told_in_kustomizes_words():
    with pytest.raises(AssertionError, match="no-such-folder"):
        build("k8s/no-such-folder")
