"""What others may not do to a managed module, refused with words instead of silently wrong.

Moving or converting weights, reading a state_dict of placeholders, copying the module, and other
offloaders on top. It knows modules and their names, nothing of units.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from offload.errors import StateError
from offload.opaque import refuse_opaque

OTHER_OFFLOADERS = ("group_offloading", "layerwise_casting")  # names in diffusers' hook registry
OWNED = "_tenure_owner"  # set on every module of a managed component
# Methods of diffusers' and transformers' models that read or change weights: they announce it.
ADAPTER_METHODS = (
    "load_lora_adapter",
    "fuse_lora",
    "unfuse_lora",
    "unload_lora",
    "delete_adapters",
    "load_adapter",
    "delete_adapter",
)
MERGING = ("merge", "unmerge")  # of peft's layers; one whose adapters are off unmerges in its call
Suspended = Callable[[], AbstractContextManager[None]]


class Guards:
    """Put on at attach, taken off by ``remove``; the module is then as it was."""

    def __init__(
        self,
        name: str,
        root: nn.Module,
        device: torch.device,
        suspended: Suspended,
        *,
        lends: bool,
    ) -> None:
        self._name, self._device, self._root = name, device, root
        self._modules = list(root.modules())
        self._handles: list[RemovableHandle] = []
        for method in ADAPTER_METHODS:
            if hasattr(type(root), method):
                root.__dict__[method] = _announcing(getattr(root, method), suspended)
        for module in self._modules:
            module.__dict__["_apply"] = self._guarded_apply(module)
            # A copy would call the doors of this one, and compute with its weights.
            module.__dict__["__deepcopy__"] = self._refuse_copy
            if lends and _is_adapted(module):
                for method in MERGING:
                    change = getattr(module, method)
                    module.__dict__[method] = _announcing(change, suspended, f" of {name}")
            if lends:
                hook = self._refuse_state_dict
                self._handles.append(module.register_state_dict_pre_hook(hook))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for module in self._modules:
            module.__dict__.pop("_apply", None)
            module.__dict__.pop("__deepcopy__", None)
            if _is_adapted(module):
                for method in MERGING:
                    module.__dict__.pop(method, None)
        for method in ADAPTER_METHODS:
            self._root.__dict__.pop(method, None)
        for handle in self._handles:
            handle.remove()
        self._modules, self._handles = [], []

    def _guarded_apply(self, module: nn.Module) -> Callable[..., nn.Module]:
        def apply(fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
            for dtype in {tensor.dtype for tensor in _tensors(module)}:
                probe = torch.empty(0, dtype=dtype, device=self._device)
                result = fn(probe)
                if (result.dtype, result.device) != (probe.dtype, probe.device):
                    self._refuse_change(probe, result)
            return module

        return apply

    def _refuse_change(self, now: torch.Tensor, asked: torch.Tensor) -> NoReturn:
        raise StateError(
            f"{self._name} is managed and stays {now.dtype} on {now.device}; a call would make it "
            f"{asked.dtype} on {asked.device}. Load it that way, or do it in residency.suspended()"
        )

    def _refuse_state_dict(self, module: nn.Module, prefix: str, keep_vars: bool) -> NoReturn:
        raise StateError(
            f"the weights of {self._name} are not all in the module now, so state_dict() and "
            "save_pretrained() would write empty ones: call them within residency.suspended()"
        )

    def _refuse_copy(self, memo: dict[int, Any]) -> NoReturn:
        raise StateError(f"{self._name} is managed; copy it within residency.suspended()")


def _announcing(
    change: Callable[..., Any], suspended: Suspended, whose: str = ""
) -> Callable[..., Any]:
    """Stock adapter code reads and writes weights, so it gets plain modules while it runs."""

    @functools.wraps(change)
    def announced(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            try:
                stack.enter_context(suspended())
            except StateError as error:
                raise StateError(
                    f"{change.__name__}(){whose} changes weights, and nothing was changed: "
                    f"{error}; call it between requests"
                ) from error
            return change(*args, **kwargs)

    return announced


def _is_adapted(module: nn.Module) -> bool:
    """Whether it is one of peft's layers, which keep account of what is merged into a weight."""
    return "merged_adapters" in vars(module) and all(hasattr(module, m) for m in MERGING)


def own(root: nn.Module) -> None:
    """Mark a component and all its modules as managed, until ``disown``."""
    for module in root.modules():
        module.__dict__[OWNED] = True


def disown(root: nn.Module) -> None:
    for module in root.modules():
        module.__dict__.pop(OWNED, None)


def refuse_owned(modules: dict[str, nn.Module]) -> None:
    """One module has one owner, weights that can move, and no other offloader; or StateError."""
    seen: dict[int, str] = {}
    for name, root in modules.items():
        if any(module.__dict__.get(OWNED) for module in root.modules()):
            raise StateError(f"{name} is already attached to a residency; detach() that one first")
        if id(root) in seen:
            raise StateError(f"{name} and {seen[id(root)]} are the same module; attach it once")
        seen[id(root)] = name
        refuse_other_offloaders(name, root)
        refuse_opaque(name, root)
    _refuse_shared(modules)


def refuse_other_offloaders(name: str, root: nn.Module) -> None:
    """StateError where accelerate or diffusers already moves this module's weights."""
    for path, module in root.named_modules():
        registry = module.__dict__.get("_diffusers_hook")
        hooks: Iterable[str] = getattr(registry, "hooks", {})
        other = [hook for hook in hooks if hook in OTHER_OFFLOADERS]
        if "_hf_hook" in module.__dict__:
            other.append("accelerate's hook")
        if other:
            raise StateError(
                f"{name}{'.' + path if path else ''} already has {', '.join(other)}: two "
                "offloaders cannot move the same weights; load the pipeline without it"
            )


def _refuse_shared(modules: dict[str, nn.Module]) -> None:
    users: dict[int, str] = {}
    for name, root in modules.items():
        for path, parameter in root.named_parameters():
            other = users.setdefault(id(parameter), name)
            if other != name:
                raise StateError(f"{name}.{path} also belongs to {other}; a weight has one owner")


def _tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
