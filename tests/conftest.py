"""Rules for every test: one thread, no network, no warnings left over, no test skipped in CI.

Run ``make test``, or one file: ``OMP_NUM_THREADS=1 python -m pytest tests/offload/test_plan.py``.
Nothing here imports torch, so that the torch-free tests stay quick.
"""

import os
from typing import Any

import pytest

# Before torch is imported: pictures are compared byte for byte, and a replica of at most one CPU
# has one thread too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    from hypothesis import settings
except ImportError:  # a machine with a card needs only pytest and torch for tests/gpu
    pass
else:
    settings.register_profile("ci", derandomize=True, deadline=None, database=None)
    settings.load_profile("ci")

RAY = "pytest.mark.ray"
_skipped_outside_gpu = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skipped_outside_gpu] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are skipped, with the reason, where there is no accelerator.

    Files that need a cluster come first, since they wait most, then those of stock pipelines, which
    take longest: no process is left alone with one at the end.
    """
    waiting = {item.path for item in items if item.get_closest_marker("ray")}
    items.sort(key=lambda item: (item.path not in waiting, item.path.parent.name != "stock"))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_accelerator():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One file in one process, and all that need a cluster in one: it is started once then."""
    from xdist.scheduler import LoadFileScheduling

    files = (config.rootpath / "tests").rglob("test_*.py")
    marked = {str(file.relative_to(config.rootpath)) for file in files if RAY in file.read_text()}

    class OneCluster(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return RAY if file in marked else file

    return OneCluster(config, log)


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    skipped = report.outcome == "skipped" and not hasattr(report, "wasxfail")
    if skipped and not item.get_closest_marker("gpu"):
        item.config.stash[_skipped_outside_gpu].append(item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if report.outcome == "skipped" and "tests/gpu/" not in report.nodeid:
        collector.config.stash[_skipped_outside_gpu].append(report.nodeid)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a skipped test is a failed run, unless it needs a card."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes: the first one judges
        output["skipped_outside_gpu"] = session.config.stash[_skipped_outside_gpu]
        return
    if session.config.stash[_skipped_outside_gpu] and os.environ.get("CI") == "true":
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What another process skipped."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_skipped_outside_gpu].extend(output.get("skipped_outside_gpu", []))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for nodeid in config.stash[_skipped_outside_gpu]:
        terminalreporter.write_line(f"SKIPPED OUTSIDE gpu (fails in CI): {nodeid}", red=True)
