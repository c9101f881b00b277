"""Guarantee: one thread owns a residency; a call from another raises, and nothing hangs."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch

from offload import Residency, SimulatedCard, StateError
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens

PLANS = {"permanent": [P], "forward": [F], "streamed": [S], "mixed": [P, F, S]}
any_plan = pytest.mark.parametrize("lifetimes", PLANS.values(), ids=PLANS.keys())


def elsewhere(call: Callable[[], object]) -> BaseException | None:
    """What the call raises on another thread; fails where it does not come back."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad():
                call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="stranger")
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive(), "the call hangs"
    return raised[0] if raised else None


CALLS: dict[str, Callable[[Residency, Net], object]] = {
    "forward": lambda residency, net: net(tokens(1)),
    "decode": lambda residency, net: net.decode(picture(1)),
    "a layer": lambda residency, net: net.blocks[0](picture(1)),
    "request": lambda residency, net: residency.request().__enter__(),
    "suspended": lambda residency, net: residency.suspended().__enter__(),
    "detach": lambda residency, net: residency.detach(),
    "snapshot": lambda residency, net: residency.snapshot(),
    "iter_weights": lambda residency, net: list(residency.iter_weights()),
}


@any_plan
@pytest.mark.parametrize("name", CALLS)
def test_any_call_from_another_thread_is_refused_and_changes_nothing(
    name: str, lifetimes, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    error = elsewhere(lambda: CALLS[name](residency, net))
    if name == "a layer" and lifetimes == [P]:  # carries no hook of ours: a plain module
        assert error is None
    else:
        assert isinstance(error, StateError)
        assert "thread stranger uses a residency that another thread attached" in str(error)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))


@any_plan
@pytest.mark.parametrize("name", ["forward", "decode"])
def test_a_call_from_another_thread_while_a_pass_runs_is_refused(
    name: str, lifetimes, attach: Attach
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, lifetimes))
    errors: list[BaseException | None] = []

    def inside(*_: object) -> None:
        handle.remove()
        errors.append(elsewhere(lambda: CALLS[name](residency, net)))

    handle = net.blocks[2].up.register_forward_pre_hook(inside)
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert [type(error) for error in errors] == [StateError]


def test_a_running_layer_called_by_another_thread_is_refused(attach: Attach) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    errors: list[BaseException | None] = []

    def inside(*_: object) -> None:
        handle.remove()
        errors.append(elsewhere(lambda: net.blocks[2](picture(1))))

    handle = net.blocks[2].up.register_forward_pre_hook(inside)
    with residency.request():
        assert torch.equal(net(tokens(1)), plain(tokens(1)))
    assert [type(error) for error in errors] == [StateError]


@pytest.mark.parametrize("error", [OSError("the link broke"), RuntimeError("sticky")])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_copy_that_fails_is_raised_at_the_wait_and_nothing_hangs(
    error: BaseException, threaded: bool
) -> None:
    net = make_net()
    plain = copy.deepcopy(net)
    card = SimulatedCard(memory_bytes=1 << 20, bytes_per_s=1e9, threaded=threaded)
    residency = Residency.attach({"net": net}, card=card, plan=plan_for({"net": net}, [S]))
    card.fail_copy(error, after=2)
    with pytest.raises(type(error), match=str(error)):
        net(tokens(1))
    plain.calls += 1
    assert torch.equal(net(tokens(1)), plain(tokens(1)))
    residency.detach()


@any_plan
def test_the_thread_that_attached_may_be_any(lifetimes) -> None:
    """A replica attaches, serves and detaches on a worker of its own."""
    net = make_net()
    expected = copy.deepcopy(net)(tokens(1))
    results: list[bool] = []

    def serve() -> None:
        card = SimulatedCard(memory_bytes=1 << 20, bytes_per_s=1e9, clock="virtual")
        residency = Residency.attach(
            {"net": net}, card=card, plan=plan_for({"net": net}, lifetimes)
        )
        with residency.request():
            results.append(torch.equal(net(tokens(1)), expected))
        residency.detach()

    assert elsewhere(serve) is None
    assert results == [True]
