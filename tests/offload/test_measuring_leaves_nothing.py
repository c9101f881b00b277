"""Guarantee: measuring leaves nothing behind, and what went wrong teaches nothing."""

import pytest
import torch

from offload import StateError
from tests.offload.measuring_kit import PLANS, Bench, bench


def traces(b: Bench) -> list[object]:
    modules = [module for net in b.nets.values() for module in net.modules()]
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in modules]
    own = [{n: v for n, v in m.__dict__.items() if callable(v)} for m in modules]
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return [hooks, own, list(modes), type(b.residency._requests.listener)]


@pytest.mark.parametrize("letters", PLANS)
def test_outside_it_there_is_no_hook_and_no_mode(letters: str) -> None:
    b = bench(letters)
    before = traces(b)
    with b.residency.measuring():
        assert traces(b) != before
        b.run("net")
    assert traces(b) == before
    with b.residency.request():
        b.nets["net"](torch.zeros(1))
        b.nets["net"](torch.zeros(1))  # one more than expected: it is held on to
        assert (b.residency._components["net"].run is None) == (letters == "PPPP")
    with pytest.raises(ZeroDivisionError), b.residency.measuring():
        raise ZeroDivisionError
    assert traces(b) == before
    b.residency.detach()


def run_and_fail(b: Bench) -> None:
    b.run("net")
    raise ZeroDivisionError


@pytest.mark.parametrize("letters", PLANS)
def test_a_failure_inside_teaches_nothing(letters: str) -> None:
    b = bench(letters)
    with pytest.raises(IndexError), b.residency.measuring() as probe:
        b.run("net", ("net", (0, 7)))
    with pytest.raises(StateError, match="failed"):
        probe.measured()
    with pytest.raises(ZeroDivisionError), b.residency.measuring() as probe:
        run_and_fail(b)
    with pytest.raises(StateError, match="the block that it was measured in failed"):
        probe.measured()
    with b.residency.measuring() as probe:
        b.run("net")
    assert probe.measured().components["net"].passes == 1


def test_a_failed_pass_that_somebody_went_on_from_teaches_nothing() -> None:
    b = bench("FSSS")
    with b.residency.measuring() as probe, b.residency.request():
        with pytest.raises(IndexError):
            b.nets["net"](torch.zeros(1), (0, 7))
        b.nets["net"](torch.zeros(1))
    with pytest.raises(StateError, match="a pass of net failed"):
        probe.measured()


def test_exactly_one_request_is_measured() -> None:
    b = bench("FSSS")
    with b.residency.measuring() as probe, pytest.raises(StateError, match="no request ran"):
        probe.measured()
    with b.residency.measuring() as two:
        b.run("net")
        b.run("net")
    for each, why in ((probe, "no request"), (two, "more than one request")):
        with pytest.raises(StateError, match=why):
            each.measured()


def test_it_cannot_begin_within_a_request() -> None:
    b = bench("FSSS")
    with b.residency.request(), pytest.raises(StateError, match="cannot measure"):
        b.residency.measuring()


def test_the_measured_request_is_the_same_to_the_bit() -> None:
    b = bench("PPFS")
    with b.residency.request():
        expected = b.nets["net"](torch.ones(1))
    with b.residency.measuring(), b.residency.request():
        assert torch.equal(b.nets["net"](torch.ones(1)), expected)
    assert expected == torch.tensor(1.0) + 0.7 + 0.3 + 0.3 + 0.3
