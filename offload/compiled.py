"""Which ways of compiling a component can live with weights that come and go.

Single blocks can: they are wrapped outside their compiled function. A whole model cannot, since its
layers are no calls of their own any more, nor can graphs that are replayed without any call.
"""

from collections.abc import Iterable

from torch import nn

from offload.errors import StateError
from offload.wrapper import COMPILED, hook_references, is_compiled


def refuse_compiled(name: str, root: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """StateError, with what to do instead; for a component of which something is lent."""
    if is_compiled(root) or "_orig_mod" in root._modules:
        raise StateError(
            f"{name} is compiled as a whole, so its layers cannot be brought one by one: compile "
            "its repeated blocks instead (compile_repeated_blocks), or make it permanent"
        )
    for path, module in root.named_modules():
        if is_compiled(module) and _replays_graphs(module):
            raise StateError(
                f"{name}.{path} is compiled with mode='reduce-overhead', whose replays would read "
                "weights that have left: compile it with another mode, or make it permanent"
            )
    for block in blocks:
        if is_compiled(block) and hook_references(block):
            raise StateError(
                f"a {type(block).__name__} of {name} is compiled and under a cache at once: the "
                "cache would be compiled along; use one of the two, or make it permanent"
            )


def shows_blocks(root: nn.Module, blocks: Iterable[nn.Module]) -> bool:
    """Whether the blocks' calls can be seen, as they must be where something is lent."""
    try:
        refuse_compiled("", root, blocks)
    except StateError:
        return False
    return True


def _replays_graphs(module: nn.Module) -> bool:
    config = getattr(getattr(module, COMPILED), "get_compiler_config", None)
    return bool(config is not None and (config() or {}).get("triton.cudagraphs"))
