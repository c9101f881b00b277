"""Guarantee: what the warm-up measures of the real pipeline predicts what a request will hold.

The peak that a plan predicts is that of the ledger of live storages, on every size of card.
"""

from collections.abc import Iterator

import pytest
import torch
from diffusers import AutoencoderKLQwenImage21

from deployments.config import ModelConfig
from deployments.messages import GenerateJob
from deployments.paths import resolve
from deployments.pipeline import LoadedPipeline, load_pipeline
from offload import (
    Budget,
    LiveLedger,
    Measured,
    Residency,
    ResidencyPlan,
    ResidencySpec,
    SimulatedCard,
    plan_residency,
    survey_components,
    with_measured,
)
from tests.offload.nets import F, P, S, plan_for

STEPS = 2
JOB = GenerateJob(request_id="a", prompt="a red circle", width=128, height=128, steps=STEPS, seed=3)
MIB = 1 << 20
SIZES_MIB = (3.5, 5, 8, 10, 13, 17)  # from one layer at a time to room for everything


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def pipeline() -> LoadedPipeline:
    checkpoint = str(resolve("deployments/demo/checkpoint"))
    return load_pipeline(ModelConfig(name="demo", path=checkpoint, dtype="float32"))


def card_of(memory_bytes: int) -> SimulatedCard:
    return SimulatedCard(memory_bytes=memory_bytes, bytes_per_s=4e8, clock="virtual")


def measure(
    pipeline: LoadedPipeline, card: SimulatedCard, plan: ResidencyPlan, num_requests: int = 1
) -> Measured:
    """The last of so many requests."""
    residency = Residency.attach(pipeline.components, card=card, plan=plan)
    try:
        for _ in range(num_requests):
            with residency.measuring(source="measured at 128x128") as probe, residency.request():
                pipeline.generate(JOB, lambda step, of: None, lambda: False)
        return probe.measured()
    finally:
        residency.detach()


@pytest.fixture(scope="module")
def measured(pipeline: LoadedPipeline) -> dict[str, Measured]:
    plans = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
    with torch.no_grad():
        return {
            name: measure(pipeline, card_of(1 << 30), plan_for(pipeline.components, lifetimes))
            for name, lifetimes in plans.items()
        }


def test_what_is_measured_does_not_depend_on_what_is_lent(measured: dict[str, Measured]) -> None:
    first = measured["permanent"].components
    assert list(first) == ["text_encoder", "transformer", "vae"]
    for other in measured.values():
        for name, seen in other.components.items():
            assert seen.passes == first[name].passes
            assert seen.uses == first[name].uses
            assert seen.order == first[name].order
            assert seen.gaps == ()
            assert seen.activation_bytes == pytest.approx(first[name].activation_bytes, rel=0.02)


def test_the_pipeline_uses_what_its_code_says(measured: dict[str, Measured]) -> None:
    seen = measured["streamed"].components
    assert seen["text_encoder"].passes == 1
    assert seen["transformer"].passes == STEPS
    assert set(seen["transformer"].uses.values()) == {STEPS}
    assert not any("encoder." in name for name in seen["vae"].uses), "it decodes only"
    assert not any("visual" in name for name in seen["text_encoder"].uses), "there is no picture"


def test_the_real_models_decode_is_counted_without_memory() -> None:
    """12.0 GiB is what such a decode was measured to need; see docs/planning.md."""
    with torch.device("meta"):
        vae = AutoencoderKLQwenImage21().eval()
        latents = torch.zeros(1, vae.config.z_dim, 1, 64, 64)
    with LiveLedger() as ledger:
        picture = vae.decode(latents).sample
    assert picture.shape[-2:] == (1024, 1024)
    assert ledger.peak_bytes == pytest.approx(12.0 * 1024 * MIB, rel=0.01)


@pytest.mark.parametrize("size_mib", SIZES_MIB)
def test_the_predicted_peak_is_the_ledgers(
    size_mib: float, pipeline: LoadedPipeline, measured: dict[str, Measured]
) -> None:
    facts = with_measured(survey_components(pipeline.components, {}), measured["permanent"])
    card = card_of(int(size_mib * MIB))
    plan = plan_residency(ResidencySpec(), facts, Budget.of(card.facts()))
    peak_bytes = measure(pipeline, card, plan, num_requests=2).peak_bytes  # the first one teaches
    assert plan.peak_bytes == pytest.approx(peak_bytes, rel=0.02)
    assert peak_bytes <= size_mib * MIB
