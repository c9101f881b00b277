"""Blocks compiled by Inductor on a real card: streamed, one graph a class, no graph again."""

import time

import pytest
import torch
from torch._dynamo.utils import counters

from offload import ComponentSpec, Residency, ResidencySpec
from tests.gpu.test_engine import SPECS, Net

pytestmark = pytest.mark.gpu
REQUESTS = 5


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_compiled_blocks_equal_the_compiled_plain_module(spec: ComponentSpec, card, tell) -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    for block in net.blocks:
        block.compile()
    tokens = torch.arange(32, device=card.device)
    with torch.no_grad():
        expected = net.to(card.device)(tokens)
        graphs = counters["stats"]["unique_graphs"]
        net.to("cpu")
        residency = Residency.attach(
            {"net": net}, card=card, spec=ResidencySpec(components={"net": spec})
        )
        began = time.perf_counter()
        for _ in range(REQUESTS):
            with residency.request():
                assert torch.equal(net(tokens), expected)
        residency.detach()
    assert counters["stats"]["unique_graphs"] == graphs  # the addresses of a window make no guard
    assert not counters["graph_break"]
    tell(graphs=graphs, seconds_a_request=(time.perf_counter() - began) / REQUESTS)
