"""The engine on a real card: the plain module's bytes for every plan, and only what was planned.

The modules are slow on purpose where a race could hide: the host is then far ahead of the card.
"""

import hashlib

import pytest
import torch
from torch import nn

from offload import ComponentSpec, Residency, ResidencySpec, detect_card

pytestmark = pytest.mark.gpu

WIDTH, DEPTH = 2048, 12  # a layer of 32 MiB in float32
MIB = 1 << 20


class Block(nn.Module):
    """A layer that can be made to start late."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.before = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before()
        return x + self.scale * torch.tanh(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    """An embedding in the trunk, and one list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


SPECS = {
    "all stays on the card": ComponentSpec(resident_layers="all", lifetime="permanent"),
    "all while it runs": ComponentSpec(resident_layers="all", lifetime="forward"),
    "half stays, half streamed": ComponentSpec(
        resident_layers=0.5, lifetime="permanent", policy="spread"
    ),
    "half while it runs, half streamed": ComponentSpec(
        resident_layers=0.5, lifetime="forward", policy="spread"
    ),
    "all streamed": ComponentSpec(resident_layers="none"),
}


@pytest.fixture(scope="module", autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


def prompts(device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 64, (n,), generator=generator).to(device) for n in (8, 128, 8, 1024)]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.md5(tensor.cpu().numpy().tobytes()).hexdigest()


@pytest.fixture(scope="module")
def expected(net: Net) -> list[str]:
    """What the plain module gives on the card."""
    card = detect_card()
    net.to(card.device)
    digests = [digest(net(tokens)) for tokens in prompts(card.device)]
    net.to("cpu")
    card.empty_cache()
    return digests


def nan_in_freed_memory(device: torch.device) -> None:
    """The allocator hands the last run's memory to somebody who writes to it at once."""
    for size in (400 * MIB, 64 * MIB, 32 * MIB):
        torch.full((size // 4,), float("nan"), device=device)


@pytest.mark.parametrize("wish", SPECS)
@pytest.mark.parametrize("slow", ["card ahead", "host ahead", "copies late"])
def test_the_picture_is_the_plain_modules_bit_for_bit(net, expected, keep_busy, tell, wish, slow):
    card = detect_card(check_order=True)
    for block in net.blocks:
        block.before = (lambda: keep_busy(5)) if slow == "host ahead" else (lambda: None)
    residency = Residency.attach(
        {"net": net}, card=card, spec=ResidencySpec(components={"net": SPECS[wish]})
    )
    got, seconds = [], []
    try:
        for tokens in prompts(card.device):
            with residency.request() as usage:
                if slow == "copies late":
                    with card._stream("copy"):
                        keep_busy(20)
                result = residency_output(net, tokens)
            nan_in_freed_memory(card.device)
            got.append(digest(result))
            seconds.append(usage.seconds)
    finally:
        residency.detach()
        card.empty_cache()
    tell(wish=wish, slow=slow, equal=got == expected, seconds=seconds)
    assert got == expected


def residency_output(net: Net, tokens: torch.Tensor) -> torch.Tensor:
    """As a pipeline calls it: under inference mode."""
    with torch.inference_mode():
        return net(tokens)


@pytest.mark.parametrize("wish", SPECS)
def test_the_card_holds_what_the_plan_says_and_gives_the_rest_back(net, tell, wish):
    card = detect_card(check_order=True)
    tokens = prompts(card.device)[1]
    card.synchronize()
    before = card.usage().allocated_bytes
    residency = Residency.attach(
        {"net": net}, card=card, spec=ResidencySpec(components={"net": SPECS[wish]})
    )
    try:
        component = residency.snapshot().components["net"]
        standing = card.usage().allocated_bytes - before
        held, addresses = [], []
        for _ in range(3):
            with residency.request() as usage:
                net(tokens)
            held.append(card.usage().allocated_bytes - before)
            addresses.append([p.data_ptr() for p in net.parameters() if p.numel()])
        host = residency.snapshot().host
    finally:
        residency.detach()
        card.empty_cache()
    tell(
        wish=wish,
        readiness=component.readiness,
        permanent_bytes=component.permanent_bytes,
        standing_bytes=standing,
        copied_bytes=usage.copied_bytes,
        peak_bytes=usage.peak_bytes - before,
        stall_s=usage.stall_s,
        seconds=usage.seconds,
        store_bytes=host.store_bytes,
        pinned_bytes=host.pinned_bytes,
    )
    allocations = component.units + 2
    assert component.permanent_bytes <= standing <= component.permanent_bytes + 512 * allocations
    assert held == [standing] * 3
    assert addresses[0] == addresses[1] == addresses[2]
    assert usage.copied_bytes == component.forward_bytes + component.streamed_bytes
    assert host.pinned_bytes >= host.store_bytes
    assert card.usage().allocated_bytes == before
    assert all(parameter.device.type == "cpu" for parameter in net.parameters())


def test_streaming_hides_under_a_computation_that_is_longer(net, keep_busy, tell):
    """Layers of 32 MiB take a few ms on the link; a computation of 10 ms each hides them."""
    card = detect_card(check_order=True)
    for block in net.blocks:
        block.before = lambda: keep_busy(10)
    residency = Residency.attach(
        {"net": net}, card=card, spec=ResidencySpec(components={"net": SPECS["all streamed"]})
    )
    try:
        tokens = prompts(card.device)[0]
        for _ in range(3):
            with residency.request() as usage:
                net(tokens)
                card.synchronize()
    finally:
        residency.detach()
        card.empty_cache()
        for block in net.blocks:
            block.before = lambda: None
    copy_s, compute_s = usage.arming_s, DEPTH * 0.010
    tell(seconds=usage.seconds, copy_s=copy_s, compute_s=compute_s, stall_s=usage.stall_s)
    assert usage.seconds < 1.1 * compute_s + 2 * copy_s / DEPTH + 0.02
