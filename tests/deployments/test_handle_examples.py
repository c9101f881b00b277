"""The handle examples of docs/api.md, word for word, from a program that has Ray alone."""

import subprocess
import sys

import pytest
import ray

from tests.docs import blocks

pytestmark = pytest.mark.ray
EXAMPLES = [b for b in blocks("python") if b.page.name == "api.md" and "get_app_handle" in b.text]
ELSEWHERE = """
import sys
sys.modules["deployments"] = sys.modules["offload"] = None  # not installed here
import ray
ray.init(address=sys.argv[1], namespace="serve", log_to_driver=False)
"""
# What each example leaves in its own names.
CHECKS = """
assert png.startswith(b"\\x89PNG"), png[:8]
assert preview is None or preview["png"]
assert fleet["totals"]["requests"]["served"] >= 2, fleet["totals"]
"""


def test_the_handle_examples_run_without_this_package(server, tmp_path):
    assert len(EXAMPLES) == 3
    program = "\n".join([ELSEWHERE, *(block.text for block in EXAMPLES), CHECKS])
    run = subprocess.run(
        [sys.executable, "-c", program, ray.get_runtime_context().gcs_address],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    steps = [line for line in run.stdout.splitlines() if line.startswith("20 20 ")]
    assert len(steps) == 1  # the default number of steps, told to the end
    assert "mini-5090 ready" in run.stdout or "mini-5090 busy" in run.stdout
