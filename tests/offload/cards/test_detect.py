"""A card is found without a context on it, counted as CUDA counts, or its absence is explained."""

import sys
from types import SimpleNamespace

import pytest

from offload.cards.accelerator import AcceleratorCard
from offload.cards.detect import detect_card, list_cards
from offload.cards.device_memory import CONTEXT_BYTES, slack_bytes
from offload.cards.mps import MpsCard
from offload.cards.nvml import Nvml, visible
from offload.errors import CardError
from tests.offload.cards.fake_device import FakeTorch

GIB = 1 << 30
UUIDS = ["GPU-aaaa-1", "GPU-abbb-2", "GPU-cccc-3"]


class FakeError(Exception):
    """Stands in for pynvml.NVMLError."""


class FakePynvml:
    """Three cards of 24 GiB, 512 MiB of which the driver keeps."""

    NVMLError = FakeError
    nvmlMemory_v2 = 2

    def __init__(self, *, old: bool = False, driver: bool = True) -> None:
        self.old, self.driver = old, driver
        self.free = dict.fromkeys([*UUIDS, "MIG-1"], 20 * GIB)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise FakeError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return UUIDS[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str | bytes:
        return handle.encode() if self.old else handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.free:
            raise FakeError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"Card {handle[-1]}"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=24 * GIB, free=self.free[handle])
        if self.old:
            raise FakeError("Function Not Found")
        return SimpleNamespace(total=24 * GIB, reserved=GIB // 2, free=self.free[handle])


def machine(*, cuda: bool = True, hip: str | None = None, xpu: bool = False, mps: bool = False):
    """Torch on a machine with these kinds of cards."""
    api = FakeTorch(kind="xpu" if xpu and not cuda else "cuda")
    api.module.device_count = lambda: len(UUIDS)
    absent = SimpleNamespace(is_available=lambda: False)
    api.cuda = api.module if cuda else absent
    api.xpu = api.module if xpu else absent
    api.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps))
    api.mps = SimpleNamespace(recommended_max_memory=lambda: 16 * GIB)
    api.version = SimpleNamespace(hip=hip, cuda=None if hip or not cuda else "13.0")
    api.__version__ = "2.14"
    return api


def nvml(**options):
    return lambda: Nvml(FakePynvml(**options))


def nothing() -> None:
    return None


class TestVisible:
    @pytest.mark.parametrize(
        ("value", "seen"),
        [
            ("2,0", ["GPU-cccc-3", "GPU-aaaa-1"]),
            (" 1 ", ["GPU-abbb-2"]),
            ("GPU-cccc-3", ["GPU-cccc-3"]),
            ("GPU-ab", ["GPU-abbb-2"]),
            ("GPU-a", []),  # two cards are called so
            ("0,-1,1", ["GPU-aaaa-1"]),  # CUDA stops at the first that it does not know
            ("7,0", []),
            ("", []),
            ("MIG-1", ["MIG-1"]),
            ("none", []),
        ],
    )
    def test_cards_are_counted_as_cuda_counts_them(self, value, seen):
        assert visible(UUIDS, {"CUDA_VISIBLE_DEVICES": value}) == seen

    def test_all_are_visible_where_nothing_is_said(self):
        assert visible(UUIDS, {}) == UUIDS


class TestListCards:
    def test_each_visible_card_is_told_with_what_a_plan_may_use(self):
        cards = list_cards(environ={"CUDA_VISIBLE_DEVICES": "1,2"}, load_nvml=nvml())
        assert [card.name for card in cards] == ["Card 2", "Card 3"]
        assert cards[0].memory_bytes == 24 * GIB - GIB // 2
        assert cards[0].free_bytes == 20 * GIB
        assert cards[0].reserve_bytes == CONTEXT_BYTES + slack_bytes(24 * GIB - GIB // 2)
        assert cards[0].uuid == "GPU-abbb-2"

    def test_an_old_driver_is_asked_the_old_way(self):
        cards = list_cards(environ={}, load_nvml=nvml(old=True))
        assert [card.memory_bytes for card in cards] == [24 * GIB] * 3
        assert cards[0].uuid == "GPU-aaaa-1"

    def test_without_a_driver_there_are_none(self):
        assert list_cards(environ={}, load_nvml=nothing) == []

    def test_the_driver_is_loaded_late_and_its_absence_is_no_error(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(driver=False))
        assert Nvml.load() is None
        monkeypatch.setitem(sys.modules, "pynvml", FakePynvml())
        loaded = Nvml.load()
        assert loaded is not None
        assert loaded.uuids() == UUIDS

    def test_a_missing_library_is_said(self, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert Nvml.load() is None
        assert "pip install nvidia-ml-py" in caplog.text

    def test_a_card_that_the_driver_does_not_know_is_named(self):
        with pytest.raises(CardError, match=r"MIG-9.*nvidia-smi -L"):
            list_cards(environ={"CUDA_VISIBLE_DEVICES": "MIG-9"}, load_nvml=nvml())


class TestDetectCard:
    def test_an_nvidia_card_is_known_before_it_has_a_context(self):
        api = machine()
        card = detect_card(1, api=api, environ={}, load_nvml=nvml())
        facts = card.facts()
        assert isinstance(card, AcceleratorCard)
        assert (facts.name, facts.uuid, facts.free_bytes) == ("Card 2", "GPU-abbb-2", 20 * GIB)
        assert str(card.device) == "cuda:1"
        assert not api.initialized

    def test_free_memory_is_asked_for_anew(self):
        pynvml = FakePynvml()
        card = detect_card(api=machine(), environ={}, load_nvml=lambda: Nvml(pynvml))
        pynvml.free["GPU-aaaa-1"] = 5 * GIB
        assert card.facts().free_bytes == 5 * GIB

    def test_the_index_counts_visible_cards(self):
        environ = {"CUDA_VISIBLE_DEVICES": "2,0"}
        card = detect_card(0, api=machine(), environ=environ, load_nvml=nvml())
        assert card.facts().uuid == "GPU-cccc-3"

    def test_cuda_is_told_to_count_as_nvml_does_unless_the_user_has_decided(self):
        for environ in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
            before = dict(environ)
            detect_card(api=machine(), environ=environ, load_nvml=nvml())
            assert environ == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | before

    @pytest.mark.parametrize("uuid", ["cccc-3", "GPU-cccc-3"])
    def test_once_cuda_runs_it_is_asked_which_card_it_means(self, uuid):
        api = machine()
        api.initialized = True
        api.module.get_device_properties = lambda index: SimpleNamespace(uuid=uuid)
        environ: dict[str, str] = {}
        card = detect_card(0, api=api, environ=environ, load_nvml=nvml())
        assert card.facts().uuid == "GPU-cccc-3"
        assert environ == {}

    def test_it_may_play_a_smaller_card(self):
        card = detect_card(
            memory_bytes=8 * GIB, check_order=True, api=machine(), environ={}, load_nvml=nvml()
        )
        assert card.memory_bytes == card.facts().free_bytes == 8 * GIB
        assert card.order is not None

    @pytest.mark.parametrize("load", [nothing, nvml()], ids=["no NVML", "NVML too"])
    def test_rocm_is_cuda_without_nvml(self, load):
        card = detect_card(2, api=machine(hip="7.1"), environ={}, load_nvml=load)
        assert str(card.device) == "cuda:2"
        assert card.facts().name == "Fake cuda"

    def test_xpu_and_mps_come_after(self):
        xpu = detect_card(api=machine(cuda=False, xpu=True, mps=True), load_nvml=nothing)
        assert str(xpu.device) == "xpu:0"
        mps = detect_card(api=machine(cuda=False, mps=True), load_nvml=nothing)
        assert isinstance(mps, MpsCard)

    def test_an_mps_card_cannot_play_a_smaller_one(self):
        with pytest.raises(CardError, match="memory_bytes"):
            detect_card(memory_bytes=GIB, api=machine(cuda=False, mps=True), load_nvml=nothing)

    @pytest.mark.parametrize("initialized", [True, False])
    @pytest.mark.parametrize("index", [3, -1])
    def test_a_card_that_is_not_there_is_refused_with_the_count(self, index, initialized):
        api = machine()
        api.initialized = initialized
        with pytest.raises(CardError, match=rf"card {index} .* 3 cuda card"):
            detect_card(index, api=api, environ={}, load_nvml=nvml())

    def test_a_driver_that_torch_cannot_use_is_explained(self):
        with pytest.raises(CardError, match=r"torch 2\.14 \(CUDA None\)"):
            detect_card(api=machine(cuda=False), environ={}, load_nvml=nvml())

    def test_no_card_at_all_is_explained_with_a_way_out(self):
        with pytest.raises(CardError, match="SimulatedCard"):
            detect_card(api=machine(cuda=False), load_nvml=nothing)
