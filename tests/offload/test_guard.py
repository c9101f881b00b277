"""Guarantee: no operation reads weights that are not on the card; whoever tries is named."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offload import Residency, StateError
from offload.guard import DispatchGuard
from tests.offload.conftest import Attach
from tests.offload.nets import F, Net, P, S, make_net, picture, plan_for, tokens, virtual_card

Read = Callable[[torch.Tensor], object]

# On a released vector these raise nothing by themselves.
SILENT: dict[str, Read] = {
    "sum": lambda w: w.sum(),
    "norm": lambda w: w.norm(),
    "product of all": lambda w: w.prod(),
    "cat": lambda w: torch.cat([w, torch.ones(2)]),
    "view, then sum": lambda w: w[None].expand(3, -1).sum(),
    "product with one column": lambda w: torch.ones(2, 1) * w,
    "clone": lambda w: w.clone(),
    "another dtype": lambda w: w.to(torch.float64),
    "comparison": lambda w: torch.equal(w, w),
    "in-place": lambda w: w.zero_(),
    "by its data": lambda w: w.data.sum(),
    "detached": lambda w: w.detach().abs(),
}
# They look at dtype, device and shape only.
METADATA: dict[str, Read] = {
    "dtype and device": lambda w: (w.dtype, w.device, w.requires_grad),
    "sizes": lambda w: (w.shape, w.numel(), w.dim(), w.stride(), len(w)),
    "is it a float": lambda w: w.is_floating_point(),
    "views": lambda w: (w.t(), w[None], w.view(-1), w.detach(), w.data),
    "others like it": lambda w: (torch.zeros_like(w), w.new_empty(3), torch.empty_like(w)),
    "dtype for another": lambda w: torch.ones(2).to(w),
    "type for another": lambda w: torch.ones(2).type_as(w),
    "pointer": lambda w: (w.data_ptr(), w.untyped_storage().nbytes()),
}
CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.fixture(scope="module")
def residency() -> Residency:
    with torch.no_grad():
        net = make_net()
        return Residency.attach(
            {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [F, S])
        )


def guard_of(residency: Residency) -> DispatchGuard:
    guard = DispatchGuard()
    guard.watch(residency._components)
    return guard


def net_of(residency: Residency) -> Net:
    root = residency._components["net"].root
    assert isinstance(root, Net)
    return root


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("read", SILENT)
def test_a_silent_read_of_a_released_parameter_raises(read, context, residency) -> None:
    weight = net_of(residency).blocks[1].scale
    with CONTEXTS[context]():
        SILENT[read](weight)  # without the guard it is silent: that is what the guard is for
        with guard_of(residency), pytest.raises(StateError) as raised:
            SILENT[read](weight)
    for word in ("aten.", "blocks.1.scale", "of net", "unit blocks.1"):
        assert word in str(raised.value)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("ask", METADATA)
def test_asking_for_metadata_is_allowed(ask, context, residency) -> None:
    with CONTEXTS[context](), guard_of(residency):
        METADATA[ask](net_of(residency).blocks[1].scale)


def test_a_view_that_was_kept_is_known_too(residency) -> None:
    kept = net_of(residency).blocks[0].up.weight.t()
    with guard_of(residency), pytest.raises(StateError, match=r"blocks\.0\.up\.weight of net"):
        kept.sum()


def test_reading_a_host_copy_while_a_pass_runs_raises(attach: Attach) -> None:
    """A tensor that iter_weights handed out is no weight to compute with: it lies elsewhere."""
    net = make_net()
    residency = attach({"net": net}, plan_for({"net": net}, [S]))
    lies_in_host_memory = dict(residency.iter_weights())["net.blocks.2.down.bias"]
    lies_in_host_memory.sum()  # between passes it may be read

    def sneak(*_: object) -> None:
        lies_in_host_memory.sum()

    hook = net.blocks[0].register_forward_hook(sneak)
    with pytest.raises(StateError, match=r"blocks\.2\.down\.bias of net .* host copy"):
        net(tokens(1))
    hook.remove()
    assert torch.isfinite(net(tokens(1))).all()


def test_weights_may_be_read_within_suspended(attach: Attach) -> None:
    net = make_net()
    total = sum(float(parameter.sum()) for parameter in net.parameters())
    residency = attach({"net": net}, plan_for({"net": net}, [F, S]))
    with residency.suspended():
        assert sum(float(parameter.sum()) for parameter in net.parameters()) == total
    with pytest.raises(StateError):
        sum(parameter.sum() for parameter in net.parameters())


def test_after_detach_nothing_is_guarded_any_more(residency) -> None:
    net = make_net()
    other = Residency.attach({"net": net}, card=virtual_card(), plan=plan_for({"net": net}, [S]))
    with guard_of(other):
        other.detach()
        for parameter in net.parameters():
            parameter.sum()


@given(
    lifetimes=st.lists(st.sampled_from([P, F, S]), min_size=1, max_size=7),
    layer=st.integers(0, 4),
    read=st.sampled_from(sorted(set(SILENT) - {"in-place"})),
    after=st.integers(0, 4),
)
def test_in_any_plan_a_read_raises_exactly_while_the_weight_is_released(
    lifetimes, layer, read, after
) -> None:
    with torch.no_grad():
        net = make_net()
        expected = make_net()(tokens(1), picture(1))
        residency = Residency.attach(
            {"net": net}, card=virtual_card(), plan=plan_for({"net": net}, lifetimes)
        )
        weight, outcomes = net.blocks[layer].scale, []

        def sneak(*_: object) -> None:
            released = weight.numel() == 0
            try:
                SILENT[read](weight)
            except StateError:
                outcomes.append((released, True))
            else:
                outcomes.append((released, False))

        with guard_of(residency):
            for _ in range(2):  # the second pass follows what the first one taught
                hook = net.blocks[after].register_forward_hook(sneak)
                assert torch.equal(net(tokens(1), picture(1)), expected)
                hook.remove()
        residency.detach()
        assert len(outcomes) == 2
        assert all(released == raised for released, raised in outcomes)
