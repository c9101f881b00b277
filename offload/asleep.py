"""What a sleeping component answers: every use of it is refused with the way to wake it.

Its weights are not there, so that nothing may run, be saved, copied or moved.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn
from torch.utils.hooks import RemovableHandle

from offload.doors import door_names
from offload.errors import StateError
from offload.wrapper import Wrapper


class AsleepSign:
    """Put up at sleep, taken down by ``remove``; the module is then as it was."""

    def __init__(self, name: str, root: nn.Module) -> None:
        self._name = name
        self._modules = list(root.modules())
        self._wrappers: list[Wrapper] = []
        self._handles: list[RemovableHandle] = []
        for module in self._modules:
            for door in door_names(root) if module is root else _calls(module):
                self._wrappers.append(Wrapper(module, door, self._refusal("called")))
            module.__dict__["_apply"] = self._refusal("moved or converted")
            module.__dict__["__deepcopy__"] = self._refusal("copied")
            hook = self._refusal("saved")
            self._handles.append(module.register_state_dict_pre_hook(hook))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for wrapper in reversed(self._wrappers):
            wrapper.remove()
        for module in self._modules:
            module.__dict__.pop("_apply", None)
            module.__dict__.pop("__deepcopy__", None)
        for handle in self._handles:
            handle.remove()
        self._wrappers, self._modules, self._handles = [], [], []

    def _refusal(self, done: str) -> Callable[..., NoReturn]:
        name = self._name

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise StateError(
                f"{name} is {done} while it is asleep, with no weight on the card: call "
                "residency.wake() first"
            )

        return refuse


def _calls(module: nn.Module) -> list[str]:
    has_forward = getattr(type(module), "forward", None) is not nn.Module.forward
    return ["forward"] if has_forward else []
