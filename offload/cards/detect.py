"""Finds the card of this process, without making a context on it where the driver allows that."""

import os
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from offload.cards.accelerator import AcceleratorCard
from offload.cards.base import Card
from offload.cards.mps import MpsCard
from offload.cards.nvml import VISIBLE, Nvml, visible
from offload.errors import CardError
from offload.facts import CardFacts

ORDER = "CUDA_DEVICE_ORDER"


def list_cards(
    *,
    environ: MutableMapping[str, str] = os.environ,
    load_nvml: Callable[[], Nvml | None] = Nvml.load,
) -> list[CardFacts]:
    """The visible NVIDIA cards as they are now; empty where there is no driver."""
    nvml = load_nvml()
    if nvml is None:
        return []
    return [nvml.facts(uuid) for uuid in visible(nvml.uuids(), environ)]


def detect_card(
    index: int | None = None,
    *,
    memory_bytes: int | None = None,
    check_order: bool = False,
    api: Any = torch,
    environ: MutableMapping[str, str] = os.environ,
    load_nvml: Callable[[], Nvml | None] = Nvml.load,
) -> Card:
    """The visible card ``index`` (None: the first), NVIDIA before ROCm, XPU and MPS.

    ``memory_bytes`` makes it play a smaller card. CardError says what to do where there is none.
    """
    wanted = index or 0
    options = {"memory_bytes": memory_bytes, "check_order": check_order, "api": api}
    nvml = load_nvml()
    if nvml is not None and api.version.hip is None:
        uuid = _uuid_of(nvml, wanted, api, environ)
        return AcceleratorCard(f"cuda:{wanted}", probe=lambda: nvml.facts(uuid), **options)
    for kind in ("cuda", "xpu"):  # cuda: ROCm, and boards whose driver has no NVML
        module = getattr(api, kind)
        if module.is_available():
            _check_index(wanted, module.device_count(), kind)
            return AcceleratorCard(f"{kind}:{wanted}", **options)
    if api.backends.mps.is_available():
        _check_index(wanted, 1, "mps")
        if memory_bytes is not None:
            raise CardError("an MPS card cannot play a smaller one; leave memory_bytes out")
        return MpsCard(api=api)
    raise CardError(
        "no accelerator was found: no NVIDIA driver, and torch sees no ROCm, XPU or MPS device; "
        "install the driver or a torch build for the card, or use SimulatedCard(memory_bytes=...)"
    )


def _uuid_of(nvml: Nvml, index: int, api: Any, environ: MutableMapping[str, str]) -> str:
    if not api.cuda.is_available():
        raise CardError(
            f"the NVIDIA driver is there, but torch {api.__version__} (CUDA {api.version.cuda}) "
            f"cannot use it: install a CUDA build of torch that this driver supports, and look "
            f"whether {VISIBLE}={environ.get(VISIBLE)!r} hides every card"
        )
    if api.cuda.is_initialized():  # then CUDA itself can say, and the order is fixed already
        _check_index(index, api.cuda.device_count(), "cuda")
        uuid = str(api.cuda.get_device_properties(index).uuid)
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    # CUDA counts the fastest card first unless told to count as NVML does.
    environ.setdefault(ORDER, "PCI_BUS_ID")
    seen = visible(nvml.uuids(), environ)
    _check_index(index, len(seen), "cuda")
    return seen[index]


def _check_index(index: int, count: int, kind: str) -> None:
    if not 0 <= index < count:
        raise CardError(f"card {index} was asked for, but {count} {kind} card(s) are visible")
