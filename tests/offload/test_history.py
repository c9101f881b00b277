"""Guarantee: what is expected is what the last like pass did; one that failed teaches nothing."""

import pytest

from offload.history import History, PassKind, Recorder
from tests.offload.conftest import Attach
from tests.offload.nets import F, S, make_net, picture, plan_for, tokens

TEXT = PassKind("te", "forward", ("input_ids",))
IMAGE = PassKind("te", "forward", ("input_ids", "pixel_values"))
DECLARED = ["vision.0", "vision.1", "text.0"]


def observed(*units: str) -> Recorder:
    recorder = Recorder()
    for unit in units:
        recorder.used(unit)
    return recorder


def test_a_kind_never_seen_is_expected_as_declared_each_unit_once() -> None:
    history = History()
    assert history.order(TEXT, DECLARED) == tuple(DECLARED)
    assert history.expected_uses(TEXT, "text.0") == 1
    assert history.passes_left("te", 0) is None


def test_the_last_like_pass_gives_order_and_uses() -> None:
    history = History()
    history.learn(TEXT, observed("text.0").finished())
    history.learn(IMAGE, observed("vision.1", "text.0", "vision.0", "text.0").finished())
    assert history.order(TEXT, DECLARED) == ("text.0",)
    assert history.order(IMAGE, DECLARED) == ("vision.1", "text.0", "vision.0")  # by first use
    assert history.expected_uses(IMAGE, "text.0") == 2
    assert history.expected_uses(TEXT, "vision.0") == 0
    history.learn(TEXT, observed("vision.0", "text.0").finished())
    assert history.order(TEXT, DECLARED) == ("vision.0", "text.0")


def test_doors_arguments_and_components_tell_passes_apart() -> None:
    history = History()
    history.learn(TEXT, observed("text.0").finished())
    for other in (IMAGE, TEXT._replace(door="generate"), TEXT._replace(component="te_2")):
        assert history.order(other, DECLARED) == tuple(DECLARED)


def test_what_was_recorded_does_not_change_afterwards() -> None:
    recorder = observed("text.0")
    finished = recorder.finished()
    recorder.used("text.0")
    assert finished.uses == {"text.0": 1}


def test_passes_left_count_down_from_the_last_request() -> None:
    history = History()
    history.learn_request(["transformer"] * 3)
    assert [history.passes_left("transformer", done) for done in range(5)] == [3, 2, 1, 0, None]
    assert history.passes_left("vae", 0) == 0


def test_a_pass_that_failed_teaches_nothing(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    net.decode(picture(1))
    kind = PassKind("net", "decode", ("x",))
    learnt = residency.history.order(kind, [])
    assert learnt == tuple(f"blocks.{i}" for i in reversed(range(5)))
    failing = net.blocks[3].up.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net.decode(picture(1))
    failing.remove()
    assert residency.history.order(kind, []) == learnt


def test_a_request_that_failed_teaches_no_number_of_passes(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F]))
    with residency.request():
        net(tokens(1))
        net(tokens(2))
    failing = net.final.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), residency.request():
        net(tokens(1))
    failing.remove()
    assert residency.history.passes_left("net", 0) == 2


def test_each_door_and_set_of_arguments_is_learnt_apart(attach: Attach) -> None:
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [F, S]))
    with residency.request():
        net(tokens(1))
        net(tokens(1), picture(1))
        net(tokens(1), image=picture(1))
        net(tokens(1), image=None)
        net.encode(picture(1))
    order = residency.history.order
    blocks, side = [f"blocks.{i}" for i in range(5)], [f"side.{i}" for i in range(2)]
    assert order(PassKind("net", "forward", ("tokens",)), ["unseen"]) == (*blocks,)
    assert order(PassKind("net", "forward", ("image", "tokens")), ["unseen"]) == (*side, *blocks)
    assert order(PassKind("net", "encode", ("x",)), ["unseen"]) == (*side,)
