"""The doctor's look at drivers and cards, through NVML: no context is created on any card.

Knows what torch was built for and what the driver can run; knows nothing of plans.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deployments.config import CardsConfig
from deployments.finding import Finding
from offload import CardFacts, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What NVML says of the NVIDIA driver."""

    version: str
    cuda: tuple[int, int]  # the newest CUDA that it runs


def examine_cards(cards: CardsConfig) -> Iterator[Finding]:
    """Driver, torch's build, and each card; where there is no driver, what runs instead."""
    import pynvml  # late, all three: the commands that need no torch stay quick
    import torch

    from offload import list_cards

    driver = read_driver(pynvml)
    yield examine_driver(driver, cards)
    yield examine_torch(torch.__version__, torch.version.cuda, driver)
    if isinstance(driver, Driver):
        yield from map(examine_card, list_cards())


def read_driver(nvml: Any) -> Driver | str:
    """The driver as the module ``pynvml`` tells, or why there is none."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return str(error)
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 13010 is 13.1
        return Driver(
            version=str(nvml.nvmlSystemGetDriverVersion()), cuda=(cuda // 1000, cuda % 1000 // 10)
        )
    finally:
        nvml.nvmlShutdown()


def examine_driver(driver: Driver | str, cards: CardsConfig) -> Finding:
    simulated = f"{len(cards.simulated)} simulated card(s) are used"
    if isinstance(driver, Driver):
        major, minor = driver.cuda
        return Finding.fine("driver", f"{driver.version}, runs CUDA up to {major}.{minor}")
    if cards.gpu == "require":
        return Finding.to_do(
            "driver", f"none ({driver}), and cards.gpu is require: install the NVIDIA driver"
        )
    if not cards.simulated:
        return Finding.to_do(
            "driver", f"none ({driver}), and cards.simulated is empty: install it, or add a card"
        )
    return Finding.fine("driver", f"none ({driver}): {simulated}")


def examine_torch(version: str, cuda: str | None, driver: Driver | str) -> Finding:
    """A CUDA build runs on every driver of its own major version or a later one."""
    built = f"{version}, built for {f'CUDA {cuda}' if cuda else 'no NVIDIA card'}"
    if not isinstance(driver, Driver):
        return Finding.fine("torch", built)
    if cuda is None:
        return Finding.to_do("torch", f"{built}, but there is a driver: install a CUDA build")
    major, minor = driver.cuda
    if int(cuda.split(".")[0]) > major:
        return Finding.to_do(
            "torch",
            f"{built}, but the driver runs CUDA up to {major}.{minor}: update the driver, or "
            "install a torch built for that version",
        )
    return Finding.fine("torch", built)


def examine_card(card: CardFacts) -> Finding:
    free, total = format_bytes(card.free_bytes), format_bytes(card.memory_bytes)
    return Finding.fine("card", f"{card.name}, {free} of {total} free ({card.uuid})")
