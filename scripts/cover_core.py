"""Runs the tests of the modules above the torch line and fails under 100 % of lines and branches.

The core is what the planner and the reports import; its tests are those named for its modules.
"""

import subprocess
import sys

from scripts.import_graph import ROOT, closure, project_modules

ROOTS = (
    "offload.planner",
    "offload.report",
    "offload.schedule",
    "offload.wish",
    "offload.explanation",
    "offload.facts_json",
    "offload.measured",
    "offload.timeline",
    "offload.pin_budget",
)


def core_modules() -> list[str]:
    """The torch-free half of ``offload``, sorted; its lazy door is not part of it."""
    return sorted(closure(ROOTS) - {"offload"})


def main() -> int:
    """Test, then report; 0 when every line and branch of the core ran."""
    core = core_modules()
    files = [str(project_modules()[name].relative_to(ROOT)) for name in core]
    stems = [name.rpartition(".")[2] for name in core]
    tests = {str(p) for stem in stems for p in (ROOT / "tests/offload").glob(f"test_{stem}*.py")}
    run = [sys.executable, "-m", "pytest", "-q", "--cov=offload", "--cov-branch", "--cov-report="]
    report = ["-m", "coverage", "report", f"--include={','.join(files)}", "--fail-under=100"]
    return subprocess.call([*run, *sorted(tests)], cwd=ROOT) or subprocess.call(
        [sys.executable, *report], cwd=ROOT
    )


if __name__ == "__main__":
    sys.exit(main())
