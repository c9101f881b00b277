"""Guarantee: the ledger knows how many bytes of tensors live, and the most that ever did."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from offload.live_ledger import LiveLedger

MODES = [pytest.param(False, id="no_grad"), pytest.param(True, id="inference_mode")]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.inference_mode(request.param), torch.no_grad():
        yield


def floats(*shape: int, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, device=device)


@pytest.mark.usefixtures("mode")
class TestWhatLives:
    """Hand-computed: 64 floats are 256 bytes, the least that counts."""

    def test_a_chain_of_products_holds_two_at_once(self) -> None:
        x, weights = floats(64, 64), [floats(64, 64) for _ in range(4)]
        with LiveLedger() as ledger:
            for weight in weights:
                x = x @ weight  # the old one lives until the new one is there
            assert ledger.current_bytes == 64 * 64 * 4
            assert ledger.peak_bytes == 2 * 64 * 64 * 4
            del x
            assert ledger.current_bytes == 0
        assert ledger.peak_bytes == 2 * 64 * 64 * 4

    def test_a_branch_that_is_kept_counts_until_it_is_added(self) -> None:
        x = floats(1024)
        with LiveLedger() as ledger:
            kept = x + 1
            y = torch.sin(kept)
            y = torch.cos(y)  # kept, sin and cos
            y = y + kept  # kept, cos and the sum
            del kept
            assert ledger.peak_bytes == 3 * 4096
            assert ledger.current_bytes == 4096

    def test_views_and_operations_in_place_add_nothing(self) -> None:
        with LiveLedger() as ledger:
            x = floats(4, 1024)
            y = x.view(8, 512).transpose(0, 1)[3:].detach()
            x.add_(1).mul_(2).clamp_(max=1)
            torch.add(x, 1, out=x)
            y.contiguous  # noqa: B018 - not called: nothing is made
            assert ledger.current_bytes == ledger.peak_bytes == 16384
            del x
            assert ledger.current_bytes == 16384, "a view keeps its storage"
            del y
            assert ledger.current_bytes == 0

    def test_what_was_there_before_never_counts(self) -> None:
        weight, other = floats(1024), floats(1024)
        with LiveLedger() as ledger:
            views = [weight[1:], weight.view(32, 32), weight.detach(), weight.data]
            weight.copy_(other).mul_(2)
            shown = torch.empty(0).set_(weight.untyped_storage(), 0, (1024,), (1,))
            assert ledger.current_bytes == 0
        del views, shown

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.empty(64),
            lambda: torch.tensor([1.0] * 64),
            lambda: torch.arange(64, dtype=torch.float32),
            lambda: torch.full((64,), 2.0),
            lambda: torch.randn(64, generator=torch.Generator().manual_seed(0)),
            lambda: torch.zeros(1, 64).clone(),
            lambda: torch.ones(64).to(torch.float64)[:1],
        ],
    )
    def test_whatever_makes_a_tensor_is_seen(self, make) -> None:
        with LiveLedger() as ledger:
            x = make()
            assert ledger.current_bytes == max(256, x.untyped_storage().nbytes())
            del x
            assert ledger.current_bytes == 0

    def test_each_storage_takes_whole_places_of_256_bytes(self) -> None:
        with LiveLedger() as ledger:
            kept = [floats(1), floats(64), floats(65)]
            assert ledger.current_bytes == 256 + 256 + 512
        del kept

    def test_a_storage_that_grows_counts_what_it_has_become(self) -> None:
        with LiveLedger() as ledger:
            x = torch.empty(0)
            assert ledger.current_bytes == 0
            x.resize_(1024)
            assert ledger.current_bytes == 4096
            torch.arange(4096, dtype=torch.float32, out=x.resize_(0))
            assert ledger.current_bytes == ledger.peak_bytes == 16384
            del x
            assert ledger.current_bytes == 0

    def test_attention_counts_its_output_as_the_fused_kernel_does(self) -> None:
        q = floats(1, 4, 256, 16)
        scores = 4 * 256 * 256 * 4
        with LiveLedger() as ledger:
            out = functional.scaled_dot_product_attention(q, q, q)
            assert out.shape == q.shape
            assert q.numel() * 4 <= ledger.peak_bytes < scores
        del out

    def test_attention_in_pieces_counts_its_scores(self) -> None:
        q = floats(1, 4, 256, 16)
        scores = 4 * 256 * 256 * 4
        with (
            LiveLedger() as ledger,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            functional.scaled_dot_product_attention(q, q, q)
        assert ledger.peak_bytes >= scores

    def test_autocast_counts_the_smaller_tensors_that_it_makes(self) -> None:
        x, weight = floats(64, 64), floats(64, 64)
        with LiveLedger() as ledger, torch.autocast("cpu", dtype=torch.bfloat16):
            y = functional.linear(x, weight)
            assert y.dtype is torch.bfloat16
            assert ledger.peak_bytes == 3 * 64 * 64 * 2  # both casts and the product
        del y

    def test_an_interval_has_a_peak_of_its_own(self) -> None:
        with LiveLedger() as ledger:
            kept = floats(1024)
            floats(4096)
            assert ledger.mark() == 4096 + 16384
            assert ledger.peak_bytes == 4096
            floats(2048)
            assert ledger.mark() == 4096 + 8192
        del kept

    def test_it_tells_what_the_counting_took(self) -> None:
        with LiveLedger() as ledger:
            x = floats(16)
            for _ in range(99):
                x.add_(1)
        assert ledger.num_operations == 100
        assert 0 < ledger.overhead_s < 1

    def test_what_outlives_the_block_is_followed_to_its_end(self) -> None:
        with LiveLedger() as ledger:
            x = floats(1024)
        assert ledger.current_bytes == 4096
        floats(1024)  # not seen
        del x
        gc.collect()
        assert ledger.current_bytes == 0


def test_growth_is_told_before_the_operation_ends() -> None:
    told: list[int] = []

    def refuse(num_bytes: int) -> None:
        told.append(num_bytes)
        if num_bytes > 4096:
            raise MemoryError("too large")

    with LiveLedger(refuse) as ledger:
        x = floats(1024)
        with pytest.raises(MemoryError):
            floats(2048)
        gc.collect()
        assert told == [4096, 8192]
        assert ledger.current_bytes == 4096
    del x


class Decoder(nn.Module):
    """Like a picture decoder: norms, convolutions, and an upsampling between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
            )
            for _ in range(4)
        )
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.out(x)


@torch.no_grad()
def test_on_the_meta_device_a_decoder_counts_as_on_a_real_one() -> None:
    peaks = {}
    for device in ("cpu", "meta"):
        with torch.device(device):
            decoder, x = Decoder(8), torch.zeros(1, 8, 16, 16)
        with LiveLedger() as ledger:
            decoder(x)
        peaks[device] = ledger.peak_bytes
    last = 8 * 256 * 256 * 4  # bytes after the last upsampling
    assert peaks["meta"] == peaks["cpu"]
    assert last + last // 4 <= peaks["cpu"] <= 2 * last


@torch.inference_mode()
def test_on_the_meta_device_attention_is_one_piece_as_on_cards() -> None:
    q = torch.zeros(1, 24, 65536, 128, device="meta", dtype=torch.bfloat16)
    with LiveLedger() as ledger:
        functional.scaled_dot_product_attention(q, q, q)
    assert ledger.peak_bytes == q.numel() * 2  # its scores alone would be 192 GiB


class Wrapped(torch.Tensor):
    """As quantised weights are: it looks larger than its inner tensor, which is what lives."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapped":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float64)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride) -> "Wrapped":
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = [a.inner if isinstance(a, Wrapped) else a for a in args]
        result = func(*inner, **(kwargs or {}))
        return Wrapped(result) if func is torch.ops.aten.clone.default else result


@torch.no_grad()
def test_of_a_wrapper_the_tensors_that_it_is_made_of_count() -> None:
    weight = Wrapped(floats(64, 64))
    with LiveLedger() as ledger:
        y = floats(64, 64) @ weight
        assert ledger.current_bytes == 64 * 64 * 4
        copy = weight.clone()
        assert isinstance(copy, Wrapped)
        assert ledger.current_bytes == 2 * 64 * 64 * 4
        del copy
        assert ledger.current_bytes == 64 * 64 * 4
    del y
