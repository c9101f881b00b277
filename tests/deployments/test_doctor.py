"""Each line of the doctor is ``ok``, or says what was found and what to do about it."""

import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments import doctor
from deployments.config import CardsConfig, SimulatedCardConfig
from deployments.doctor_cards import (
    Driver,
    examine_card,
    examine_driver,
    examine_torch,
    read_driver,
)
from deployments.finding import Finding
from deployments.host import HostMemory
from deployments.serve_file import read_serve_file
from offload import CardFacts
from tests.deployments.serve_files import write_serve_file

GIB = 1 << 30
DRIVER = Driver(version="580.1", cuda=(13, 1))
DEMO = "deployments/demo/checkpoint"
ONE_CARD = (SimulatedCardConfig(name="mini", memory="14MiB"),)


def test_a_machine_that_can_run_a_file_has_only_ok_lines(tmp_path: Path) -> None:
    file = write_serve_file(tmp_path / "file.yaml", DEMO, port=_free_port())
    findings = list(doctor.examine(str(file)))
    assert [finding.line for finding in findings if not finding.ok] == []
    assert [finding.name for finding in findings] == [
        "config", "ray", "torchvision", "driver", "torch", "model", "memory", "/dev/shm", "disk",
        "port", "access",
    ]  # fmt: skip


def test_a_missing_model_does_not_hide_the_other_lines(tmp_path: Path) -> None:
    file = write_serve_file(tmp_path / "file.yaml", tmp_path / "absent", port=_free_port())
    findings = {finding.name: finding for finding in doctor.examine(str(file))}
    assert not findings["model"].ok
    assert "absent does not exist; set model.path" in findings["model"].text
    assert findings["port"].ok


def test_a_wish_for_a_component_that_does_not_exist_is_told_before_a_start(tmp_path: Path) -> None:
    file = write_serve_file(tmp_path / "file.yaml", DEMO, components={"vea": 0.5})
    finding, _ = doctor.examine_model(read_serve_file(str(file)).config)
    _expect(finding, "'vea'", "did you mean vae?")


def test_a_file_that_cannot_be_read_is_the_only_line() -> None:
    (finding,) = doctor.examine("absent.yaml")
    assert not finding.ok
    assert "there is no file absent.yaml" in finding.text


def test_a_line_says_ok_or_what_to_do() -> None:
    assert Finding.fine("disk", "9 GiB free").line.split() == ["disk", "ok", "9", "GiB", "free"]
    assert Finding.to_do("ray", "upgrade").line.split() == ["ray", "TO", "DO", "upgrade"]


def test_an_old_ray_is_to_be_upgraded() -> None:
    assert doctor.examine_ray("2.60.0").ok
    _expect(doctor.examine_ray("2.9.3"), "2.9.3 is older than 2.60: pip install")


def test_torchvision_must_be_the_build_that_matches_torch() -> None:
    requirements = ["numpy", "torch==2.14.1"]
    assert doctor.examine_torchvision("2.14.1+cpu", requirements).ok
    _expect(doctor.examine_torchvision("2.13.0", requirements), "needs torch==2.14.1, found torch")


def test_memory_must_hold_the_weights_beside_the_process() -> None:
    weights = 3 * GIB
    needed = weights + doctor.PROCESS_BYTES
    assert doctor.examine_memory(_memory(needed), weights).ok
    finding = doctor.examine_memory(_memory(needed - 1, limit_bytes=8 * GIB), weights)
    _expect(finding, "cgroup limit 8.00 GiB", "5.00 GiB for each replica", "more memory")
    assert doctor.examine_memory(None, weights).ok


def test_weights_are_counted_in_the_dtype_that_they_are_loaded_in(tmp_path: Path) -> None:
    def count(**fields: Any) -> int:
        model = {"name": "demo", "path": DEMO, **fields}
        file = write_serve_file(tmp_path / "file.yaml", DEMO, model=model)
        config = read_serve_file(str(file)).config
        _, folder = doctor.examine_model(config)
        assert folder is not None
        return doctor.weight_bytes(config.model, folder)

    stored = count(dtype="bfloat16")  # as the demo's files hold it
    assert count(dtype="float32") == 2 * stored
    assert stored < count(dtype="bfloat16", component_dtypes={"vae": "float32"}) < 2 * stored
    assert (
        doctor.weight_bytes(read_serve_file("configs/qwen-image-2.1.yaml").config.model, None) == 0
    )


def test_a_small_shared_memory_is_to_be_enlarged() -> None:
    assert doctor.examine_shared_memory(None).ok
    assert doctor.examine_shared_memory(doctor.SHARED_MEMORY_BYTES).ok
    _expect(doctor.examine_shared_memory(64 << 20), "64.0 MiB free", "--shm-size")


def test_a_full_disk_is_to_be_emptied() -> None:
    folder = Path("/somewhere")
    assert doctor.examine_disk(folder, doctor.DISK_BYTES).ok
    _expect(doctor.examine_disk(folder, 1 << 30), "1.00 GiB free under /somewhere", "RAY_TMPDIR")


def test_a_taken_port_is_to_be_freed(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        file = write_serve_file(tmp_path / "file.yaml", DEMO, port=port)
        finding = doctor.examine_port(read_serve_file(str(file)))
    _expect(finding, f"127.0.0.1:{port} is taken", "http_options.port")


def test_a_public_address_needs_keys_that_can_be_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"

    def examine(host: str, **server: str) -> Finding:
        file = write_serve_file(tmp_path / "file.yaml", DEMO, host=host, server=server)
        return doctor.examine_access(read_serve_file(str(file)))

    assert examine("127.0.0.1").text == "from this machine only"
    _expect(examine("0.0.0.0"), "anyone who reaches it may draw: set server.api_keys_file")
    _expect(examine("0.0.0.0", api_keys_file=str(keys)), "api_keys_file cannot be read")
    keys.write_text("secret\n")
    found = examine("0.0.0.0", api_keys_file=str(keys))
    assert found.ok
    assert "secret" not in found.line


@pytest.mark.parametrize(
    ("gpu", "simulated", "said"),
    [
        ("require", ONE_CARD, "cards.gpu is require: install the NVIDIA driver"),
        ("auto", (), "cards.simulated is empty: install it, or add a card"),
    ],
)
def test_a_missing_driver_is_a_fault_where_the_file_needs_one(
    gpu: Any, simulated: Sequence[SimulatedCardConfig], said: str
) -> None:
    cards = CardsConfig(gpu=gpu, simulated=tuple(simulated))
    _expect(examine_driver("library not found", cards), "none (library not found)", said)
    assert examine_driver(DRIVER, cards).ok


def test_a_missing_driver_is_fine_where_simulated_cards_stand_in() -> None:
    finding = examine_driver("library not found", CardsConfig(simulated=ONE_CARD))
    assert finding.ok
    assert "1 simulated card(s) are used" in finding.text


@pytest.mark.parametrize(
    ("cuda", "driver", "said"),
    [
        ("13.0", DRIVER, None),
        ("12.8", DRIVER, None),  # a driver runs what was built for older ones
        (None, "no driver", None),
        ("13.0", "no driver", None),
        (None, DRIVER, "built for no NVIDIA card, but there is a driver: install a CUDA build"),
        ("14.0", DRIVER, "the driver runs CUDA up to 13.1: update the driver"),
    ],
)
def test_torch_must_be_built_for_the_driver(
    cuda: str | None, driver: Driver | str, said: str | None
) -> None:
    finding = examine_torch("2.14.1", cuda, driver)
    assert finding.ok == (said is None)
    assert (said or "2.14.1") in finding.text


def test_the_driver_is_read_through_nvml() -> None:
    nvml = FakeNvml(cuda=13010)
    assert read_driver(nvml) == Driver(version="580.1", cuda=(13, 1))
    assert nvml.calls == ["init", "shutdown"]


def test_a_driver_that_does_not_answer_is_quoted() -> None:
    assert read_driver(FakeNvml(error="Driver Not Loaded")) == "Driver Not Loaded"


def test_a_card_is_shown_with_its_free_memory() -> None:
    card = CardFacts(name="RTX", memory_bytes=32 * GIB, free_bytes=30 * GIB, uuid="GPU-1")
    assert examine_card(card).text == "RTX, 30.00 GiB of 32.00 GiB free (GPU-1)"


class FakeNvml(SimpleNamespace):
    """The few calls of pynvml that the doctor makes."""

    class NVMLError(Exception):
        """As pynvml has it."""

    def __init__(self, cuda: int = 0, error: str = "") -> None:
        super().__init__(cuda=cuda, error=error, calls=[])

    def nvmlInit(self) -> None:
        if self.error:
            raise self.NVMLError(self.error)
        self.calls.append("init")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")


def _expect(finding: Finding, *said: str) -> None:
    assert not finding.ok
    for words in said:
        assert words in finding.text


def _memory(available_bytes: int, limit_bytes: int | None = None) -> HostMemory:
    return HostMemory(
        total_bytes=64 * GIB, limit_bytes=limit_bytes, available_bytes=available_bytes
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
