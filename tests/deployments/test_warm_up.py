"""Guarantee: a replica never starts with weights that its pipeline reads when they have left.

What the warm-up shows is kept in the trunk, said once a name, and the next picture is right.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest
import torch
from torch import nn

from deployments.warm_up import attach_and_warm_up
from offload import ComponentSpec, Residency, ResidencySpec, SimulatedCard, StateError
from tests.deployments.test_engine import config, draw, engine_of
from tests.offload.nets import picture
from tests.offload.sibling_nets import SIBLINGS, Siblings, make_sibling

Attach = Callable[[Mapping[str, Collection[str]]], Residency]
SPEC = ResidencySpec(components={"net": ComponentSpec(resident_layers="none")})


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def attaching(net: nn.Module, made: list[Residency], spec: ResidencySpec = SPEC) -> Attach:
    card = SimulatedCard(memory_bytes=1 << 24, bytes_per_s=1e9, clock="virtual")

    def attach(keep_in_trunk: Mapping[str, Collection[str]]) -> Residency:
        made.append(
            Residency.attach({"net": net}, card=card, spec=spec, keep_in_trunk=keep_in_trunk)
        )
        return made[-1]

    return attach


def calling(net: nn.Module) -> Callable[[Residency], None]:
    def warm_up(residency: Residency) -> None:
        with residency.request():
            net(picture())

    return warm_up


@pytest.mark.parametrize("name", SIBLINGS)
def test_after_the_notices_every_picture_is_right(name) -> None:
    net = make_sibling(name)
    plain = copy.deepcopy(net)
    made: list[Residency] = []
    said: list[str] = []
    residency = attach_and_warm_up(attaching(net, made), calling(net), said.append)
    assert len(made) == 2
    assert len(said) == len(SIBLINGS[name][1])
    for parameter in SIBLINGS[name][1]:
        assert any(parameter in notice and "kept in the trunk" in notice for notice in said)
    for seed in range(3):
        with residency.request() as usage:
            assert torch.equal(net(picture(seed)), plain(picture(seed)))
        assert usage.copied_bytes > 0 or name == "uncalled layers"  # it is still streamed
    residency.detach()


def test_where_nothing_is_read_from_outside_it_is_attached_once() -> None:
    torch.manual_seed(0)
    net = Siblings().eval().requires_grad_(False)
    made: list[Residency] = []
    said: list[str] = []
    attach_and_warm_up(attaching(net, made), calling(net), said.append).detach()
    assert len(made) == 1
    assert said == []


def test_an_error_that_comes_with_a_finding_does_not_end_the_start() -> None:
    net = make_sibling("cat")
    expected = copy.deepcopy(net)(picture())
    made: list[Residency] = []

    def warm_up(residency: Residency) -> None:
        calling(net)(residency)
        if len(made) == 1:
            raise ValueError("in words of the model's own, about a shape")

    residency = attach_and_warm_up(attaching(net, made), warm_up, lambda notice: None)
    assert len(made) == 2
    assert torch.equal(net(picture()), expected)
    residency.detach()


def test_any_other_error_leaves_and_the_module_is_plain_again() -> None:
    net = make_sibling("cat")
    weights = {name: weight.clone() for name, weight in net.named_parameters()}
    for error in (ValueError("not about weights"), KeyboardInterrupt()):

        def warm_up(residency: Residency, error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            attach_and_warm_up(attaching(net, []), warm_up, lambda notice: None)
        for name, weight in net.named_parameters():
            assert torch.equal(weight, weights[name])


def test_what_is_read_while_nothing_runs_is_refused_with_the_way_out() -> None:
    net = make_sibling("linear")
    expected = float(net.final.weight.sum()) + float(net.blocks[0].scale.sum())
    made: list[Residency] = []

    def warm_up(residency: Residency) -> None:
        with residency.request():
            assert float(net.final.weight.sum()) + float(net.blocks[0].scale.sum()) == expected
            net(picture())

    lent = ResidencySpec(components={"net": ComponentSpec(lifetime="forward")})
    with pytest.raises(StateError, match=r"final\.weight .* set lifetime: permanent for net"):
        attach_and_warm_up(attaching(net, made, lent), warm_up, lambda notice: None)
    assert len(made) == 2
    assert float(net.final.weight.sum()) + float(net.blocks[0].scale.sum()) == expected
    permanent = ResidencySpec(
        components={"net": ComponentSpec(resident_layers="all", lifetime="permanent")}
    )
    attach_and_warm_up(attaching(net, made, permanent), warm_up, lambda notice: None).detach()


def test_the_engine_warms_up_under_watch(monkeypatch, caplog) -> None:
    """A pipeline whose text encoder's first layer is read from outside still draws the same."""
    expected = draw(engine_of(config())).images[0].data
    attach = Residency.attach

    def with_a_reader(modules, **how):
        encoder = modules["text_encoder"].model
        layers = encoder.language_model.layers
        if not encoder._forward_pre_hooks:
            encoder.register_forward_pre_hook(lambda *_: _read(layers[0]))
        return attach(modules, **how)

    seen: list[float] = []

    def _read(layer: nn.Module) -> None:
        seen.append(float(layer.input_layernorm.weight.sum()))

    monkeypatch.setattr(Residency, "attach", with_a_reader)
    streamed = {"text_encoder": {"resident_layers": "none"}}
    engine = engine_of(config(components=streamed), rank=1)
    assert "text_encoder: model.language_model.layers.0.input_layernorm.weight" in caplog.text
    assert draw(engine).images[0].data == expected
    assert len(set(seen)) == 1
    assert seen[0] != 0
