"""Finds the layers and the trunk of a stock module. Moves nothing, declares nothing, knows no card.

Layers are the entries of every outermost block list, whatever their classes, at any depth. A
large entry is opened where the lists inside it hold most of it; what is left over joins the trunk,
as does every storage that two units use. A list that is not found never means "move it all".
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from offload.errors import SpecError, StateError
from offload.facts import ComponentFacts, UnitFacts, aligned
from offload.wish import group_of

SMALL_LIST = 1 / 256  # of the component's bytes: a smaller list stays in the trunk
LARGE_ENTRY = 1 / 8  # of the component's bytes: a larger entry is opened
TRUNK = "trunk"
ROOT_LIST = "layers"  # the name of a list that is the component itself


@dataclass(slots=True)
class FoundUnit:
    """One unit as found: its parameters by name, each object once."""

    name: str
    list_name: str | None
    module: nn.Module | None  # whose call is the unit's; None for the trunk
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def pinned_to_card(self) -> str:
        """Why this unit cannot be lent: its parameters cannot be rebound."""
        for name, parameter in self.parameters.items():
            if is_traceable_wrapper_subclass(parameter):
                return f"{name} is a {type(parameter).__name__}, which only moves as a whole"
        return ""


def survey_components(
    modules: Mapping[str, nn.Module], keep_in_trunk: Mapping[str, Collection[str]]
) -> list[ComponentFacts]:
    """Measure each by its name; SpecError where ``keep_in_trunk`` names another component.

    StateError on meta parameters: these are about to be placed.
    """
    for root in modules.values():
        _refuse_meta(root)
    unknown = sorted(set(keep_in_trunk) - set(modules))
    if unknown:
        raise SpecError(
            f"keep_in_trunk names {', '.join(unknown)}; components: {', '.join(modules) or 'none'}"
        )
    return [survey_component(root, n, keep_in_trunk.get(n, ())) for n, root in modules.items()]


def survey_component(
    module: nn.Module, name: str, keep_in_trunk: Collection[str] = ()
) -> ComponentFacts:
    """Measure one component. Bytes as they will lie on the card, also from the meta device.

    ``keep_in_trunk`` names parameters of layers that are read outside their layer's call.
    """
    trunk, *layers = find_units(module, keep_in_trunk)
    return ComponentFacts(
        name=name,
        group=group_of(name),
        trunk=_facts(trunk),
        layers=tuple(_facts(layer) for layer in layers),
        buffer_bytes=sum(aligned(span_bytes(b)) for b in unique_buffers(module).values()),
        kept_in_trunk=tuple(sorted(keep_in_trunk)),
    )


def find_units(root: nn.Module, keep_in_trunk: Collection[str] = ()) -> list[FoundUnit]:
    """The trunk first, then the layers in declared order."""
    kept = _kept(root, keep_in_trunk)
    layers = [
        FoundUnit(path, list_name, entry) for list_name, path, entry in _Finder(root).layers()
    ]
    owner_of = _owners(root, layers)
    trunk = FoundUnit(TRUNK, None, None)
    for path, parameter in root.named_parameters():
        key = storage_key(parameter)
        owner = trunk if key in kept else owner_of.get(key, trunk)
        owner.parameters[path] = parameter
    return [trunk, *(layer for layer in layers if layer.parameters)]


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory. A wrapper subclass is a storage of its own."""
    if is_traceable_wrapper_subclass(tensor):
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element, strides included."""
    if tensor.numel() == 0:
        return 0
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return sum(span_bytes(getattr(tensor, name)) for name in names)
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def unique_buffers(root: nn.Module) -> dict[str, torch.Tensor]:
    """Every buffer once, by its first name; empty ones left out."""
    return {name: buffer for name, buffer in root.named_buffers() if buffer.numel() > 0}


def storage_spans(tensors: Iterable[torch.Tensor]) -> dict[int, tuple[int, int]]:
    """Storage -> (first, end) byte that these tensors use of it; first is a multiple of 16."""
    spans: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        size = span_bytes(tensor)
        if size == 0:
            continue
        wrapped = is_traceable_wrapper_subclass(tensor)
        start = 0 if wrapped else int(tensor.storage_offset()) * tensor.element_size()
        low, high = spans.get(storage_key(tensor), (start, 0))
        first = min(low, start)
        spans[storage_key(tensor)] = (first - first % 16, max(high, start + size))
    return spans


def _facts(unit: FoundUnit) -> UnitFacts:
    spans = storage_spans(unit.parameters.values())
    return UnitFacts(
        name=unit.name,
        list_name=unit.list_name,
        num_bytes=sum(aligned(end - first) for first, end in spans.values()),
        pinned_to_card=unit.pinned_to_card,
    )


def _refuse_meta(root: nn.Module) -> None:
    for path, parameter in root.named_parameters():
        if parameter.is_meta:
            raise StateError(f"parameter {path} is on the meta device; load the weights first")


def _kept(root: nn.Module, names: Collection[str]) -> set[int]:
    """Storages of these parameters; SpecError on a name that is none."""
    try:
        return {storage_key(root.get_parameter(name)) for name in names}
    except AttributeError as error:
        raise SpecError(
            f"keep_in_trunk names {', '.join(sorted(names))}, and {type(root).__name__} has no "
            f"such parameter: {error}"
        ) from error


def _owners(root: nn.Module, layers: list[FoundUnit]) -> dict[int, FoundUnit]:
    """Storage -> the one layer that uses it. Storages with two users are left to the trunk."""
    users: dict[int, set[int]] = {}
    for i, layer in enumerate(layers):
        assert layer.module is not None
        for parameter in layer.module.parameters():
            users.setdefault(storage_key(parameter), set()).add(i)
    for parameter in _outside(root, {id(layer.module) for layer in layers}):
        users.setdefault(storage_key(parameter), set()).add(-1)
    return {
        key: layers[next(iter(who))]
        for key, who in users.items()
        if len(who) == 1 and -1 not in who
    }


def _outside(module: nn.Module, seen: set[int]) -> Iterator[nn.Parameter]:
    """Parameters that are reached without passing through a module in ``seen`` (the layers)."""
    seen.add(id(module))
    yield from module.parameters(recurse=False)
    for child in module.children():
        if id(child) not in seen:
            yield from _outside(child, seen)


class _Finder:
    """Walks one component down to its outermost block lists."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.total = max(1, _bytes(root))
        self.seen: set[int] = set()
        self.above: set[int] = set()  # being walked: a module may hold its parent

    def layers(self) -> list[tuple[str, str, nn.Module]]:
        """(list, path, entry) of every layer."""
        if _is_list(self.root):
            return list(self._entries(self.root, ""))
        return list(self._walk(self.root, ""))

    def _walk(self, module: nn.Module, path: str) -> Iterator[tuple[str, str, nn.Module]]:
        self.above.add(id(module))
        for name, child in module.named_children():
            where = f"{path}{name}"
            if id(child) in self.above:
                continue
            if not _is_list(child):
                yield from self._walk(child, f"{where}.")
            elif _bytes(child) >= self.total * SMALL_LIST:
                yield from self._entries(child, where)
        self.above.discard(id(module))

    def _entries(self, block_list: nn.Module, path: str) -> Iterator[tuple[str, str, nn.Module]]:
        for name, entry in block_list.named_children():
            where = f"{path}.{name}" if path else name
            size = _bytes(entry)
            if id(entry) in self.seen or size == 0:
                continue
            inner = self._opened(entry, where, size)
            if inner:
                yield from inner
            elif _has_forward(entry):
                self.seen.add(id(entry))
                yield path or ROOT_LIST, where, entry

    def _opened(self, entry: nn.Module, path: str, size: int) -> list[tuple[str, str, nn.Module]]:
        """The layers inside a large entry, or none where its lists hold less than half of it."""
        must_open = isinstance(entry, nn.Sequential) or not _has_forward(entry)
        if not must_open and size <= self.total * LARGE_ENTRY:
            return []
        before = set(self.seen)
        if _is_list(entry):
            inner = list(self._entries(entry, path)) if size >= self.total * SMALL_LIST else []
        else:
            inner = list(self._walk(entry, f"{path}."))
        if sum(_bytes(layer) for _, _, layer in inner) * 2 >= size:
            return inner
        self.seen = before
        return []


def _is_list(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    return sum(_bytes(child) > 0 for child in module.children()) >= 2


def _has_forward(module: nn.Module) -> bool:
    return getattr(type(module), "forward", None) is not nn.Module.forward


def _bytes(module: nn.Module) -> int:
    return sum(span_bytes(parameter) for parameter in module.parameters())
