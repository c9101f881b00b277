"""Guarantee: a seed gives the PNG of the plain pipeline, byte for byte, under every plan."""

import pytest
import torch
from diffusers import DiffusionPipeline

from deployments.config import ModelConfig
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.paths import resolve
from deployments.pipeline import LoadedPipeline, load_pipeline
from offload import Residency, ResidencySpec, SimulatedCard
from tests.offload.nets import F, P, S, plan_for, tight

CHECKPOINT = resolve("deployments/demo/checkpoint")
STEPS = 4
JOBS = [
    GenerateJob(request_id="a", prompt="a red circle", width=128, height=128, steps=STEPS, seed=3),
    GenerateJob(
        request_id="b",
        prompt="two green triangles",
        negative_prompt="blue",
        true_cfg_scale=2.0,
        width=128,
        height=128,
        steps=STEPS,
        seed=11,
    ),
]
PLANS = {
    "all permanent": [P],
    "all forward": [F],
    "streamed": [S],
    "mixed thirds": [P, F, S],
    "mixed halves": [P, S],
}


@pytest.fixture(scope="module")
def plain() -> list[bytes]:
    """Drawn without Tenure: stock diffusers, stock call."""
    pipeline = DiffusionPipeline.from_pretrained(str(CHECKPOINT), dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pictures = []
    for job in JOBS:
        cfg = {} if job.true_cfg_scale is None else {"true_cfg_scale": job.true_cfg_scale}
        result = pipeline(
            prompt=job.prompt,
            negative_prompt=job.negative_prompt,
            width=job.width,
            height=job.height,
            num_inference_steps=STEPS,
            generator=torch.Generator().manual_seed(job.seeds[0]),
            **cfg,
        )
        pictures.append(encode_png(result.images[0]))
    return pictures


@pytest.fixture
def pipeline() -> LoadedPipeline:
    return load_pipeline(ModelConfig(name="demo", path=str(CHECKPOINT), dtype="float32"))


def draw(pipeline: LoadedPipeline) -> list[bytes]:
    images = [pipeline.generate(job, lambda step, of: None, lambda: False)[0] for job in JOBS]
    return [encode_png(image) for image in images]


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())
def test_three_requests_draw_what_the_plain_pipeline_draws(
    lifetimes, window: int, pipeline: LoadedPipeline, plain: list[bytes]
) -> None:
    plan = tight(plan_for(pipeline.components, lifetimes, window=window))
    card = SimulatedCard(memory_bytes=plan.peak_bytes, bytes_per_s=2e9)
    residency = Residency.attach(pipeline.components, card=card, plan=plan)
    for _ in range(3):
        with residency.request() as usage:
            assert draw(pipeline) == plain
        assert usage.peak_bytes == plan.peak_bytes
        assert card.usage().allocated_bytes == plan.standing_bytes
        assert (usage.copied_bytes > 0) is (lifetimes != [P])  # nothing is answered from a cache
    residency.detach()
    assert draw(pipeline) == plain


@pytest.mark.parametrize("memory_mib", [4, 8, 10, 12, 16])
def test_whatever_the_planner_chooses_draws_the_same(
    memory_mib: int, pipeline: LoadedPipeline, plain: list[bytes]
) -> None:
    card = SimulatedCard(memory_bytes=memory_mib << 20, bytes_per_s=2e9)
    spec = ResidencySpec(components={"text_encoder": 0.8, "transformer": "all", "vae": "all"})  # type: ignore[dict-item]
    residency = Residency.attach(pipeline.components, card=card, spec=spec)
    with residency.request() as usage:
        assert draw(pipeline) == plain
    assert usage.peak_bytes <= card.memory_bytes
    residency.detach()


def test_a_text_only_request_moves_no_byte_of_the_vision_tower(pipeline: LoadedPipeline) -> None:
    """Nor of the VAE's encoder, once a request has shown that they are not used."""
    components = pipeline.components
    plan = plan_for(components, [F])
    residency = Residency.attach(
        components, card=SimulatedCard(memory_bytes=1 << 30, bytes_per_s=2e9), plan=plan
    )
    job = JOBS[0]
    for _ in range(2):
        with residency.request() as usage:
            pipeline.generate(job, lambda step, of: None, lambda: False)
    for name, unused in {"text_encoder": "visual", "vae": "encoder"}.items():
        layers = plan[name].layers
        used = sum(u.num_bytes for u in layers if f"{unused}." not in f"{u.name}.")
        assert usage.components[name].copied_bytes == used + plan[name].trunk.num_bytes
        assert used < sum(u.num_bytes for u in layers)
    residency.detach()
