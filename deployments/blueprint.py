"""A model's modules as loading would make them, but on the meta device: no weight is read.

Built from configuration files alone, with the shapes, dtypes, ties and buffers of the loaded ones.
It knows how diffusers and transformers choose a dtype on load, and names no class of theirs: those
stand in the model's own files. ``tests/deployments/test_blueprint.py`` compares it with real loads.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deployments.config import ComponentConfig, ModelConfig
from deployments.errors import ModelError
from deployments.loading import ComponentFiles, ModelFolder
from deployments.pipeline import apply_settings, component_dtypes
from deployments.upcast import hold_upcast

LIBRARIES = ("diffusers", "transformers")
WIDE = torch.float32


def build_modules(
    model: ModelConfig, components: Mapping[str, ComponentConfig], folder: ModelFolder
) -> dict[str, nn.Module]:
    """Component -> module on the meta device, in the order in which the pipeline lists them."""
    pipeline_class = _pipeline_class(folder)
    dtypes = component_dtypes(model, folder)
    modules: dict[str, nn.Module] = {}
    for name in _order(pipeline_class, folder):
        files = folder.components[name]
        kind = _class_of(files)
        if issubclass(kind, nn.Module):
            modules[name] = _build(kind, files, folder.path / name, dtypes[name])
    hold_upcast(pipeline_class, modules.values())
    apply_settings(modules, components)
    return modules


def _pipeline_class(folder: ModelFolder) -> type:
    return _find("diffusers", folder.pipeline_class, "the pipeline")


def _class_of(files: ComponentFiles) -> type:
    library = files.library
    if library not in LIBRARIES and not re.fullmatch(r"\w+", library):
        raise ModelError(f"{files.name} comes from {library!r}, which is no part of diffusers")
    return _find(
        library if library in LIBRARIES else f"diffusers.pipelines.{library}",
        files.class_name,
        files.name,
    )


def _find(module: str, class_name: str, what: str) -> type:
    try:
        found = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{what} is a {class_name} of {module}, which the installed version does not have; "
            "install the version that the model asks for"
        ) from error
    if not isinstance(found, type):
        raise ModelError(f"{what} names {class_name} of {module}, which is no class")
    return found


def _order(pipeline_class: type, folder: ModelFolder) -> list[str]:
    """As the pipeline registers its parts: the plan lists them in the order of a replica's."""
    registered: list[str] = []

    class Registers(pipeline_class):  # type: ignore[misc]  # known at run time only
        def register_modules(self, **parts: Any) -> None:
            registered.extend(parts)

    accepted = [name for name in inspect.signature(pipeline_class).parameters if name != "kwargs"]
    with suppress(Exception):  # once it has registered, it misses the parts that are not there
        Registers(**dict.fromkeys(accepted))
    names = dict.fromkeys([*registered, *accepted, *folder.components])
    return [name for name in names if name in folder.components]


def _build(kind: type, files: ComponentFiles, path: Path, dtype: torch.dtype) -> nn.Module:
    config = files.config
    if not config:
        raise ModelError(
            f"{files.name} ({files.class_name}) has no config.json in {path}; download it again"
        )
    if config.get("quantization_config"):
        raise ModelError(
            f"{files.name} is quantised, and how many bytes its weights take is known only once "
            "they are loaded: start a replica, and read its plan in the log or under /fleet"
        )
    build = _build_diffusers if hasattr(kind, "load_config") else _build_transformers
    try:
        with torch.device("meta"), _default_dtype(dtype):
            return build(kind, path, dtype)
    except Exception as error:  # a constructor may raise anything over a file it does not expect
        raise ModelError(
            f"{files.name} ({files.class_name}) cannot be built from {path}/config.json: {error}"
        ) from error


def _build_diffusers(kind: Any, path: Path, dtype: torch.dtype) -> nn.Module:
    module: nn.Module = kind.from_config(kind.load_config(str(path), local_files_only=True))
    wide = set(kind._keep_in_fp32_modules or ())

    def loaded(name: str, tensor: torch.Tensor) -> torch.dtype:
        return WIDE if wide & set(name.split(".")) else dtype

    _convert(module, loaded)
    return module


def _build_transformers(kind: Any, path: Path, dtype: torch.dtype) -> nn.Module:
    config = kind.config_class.from_pretrained(str(path), local_files_only=True)
    module: nn.Module = kind._from_config(config, dtype=dtype)  # sets it on configs inside, too
    plan = module._get_dtype_plan(dtype)  # type: ignore[operator]  # pattern -> dtype

    def loaded(name: str, tensor: torch.Tensor) -> torch.dtype:
        patterns = (p for p in plan if re.search(p.replace("*", ".*"), name))
        return next((plan[p] for p in patterns), tensor.dtype)

    _convert(module, loaded)
    return module


def _convert(module: nn.Module, loaded: Callable[[str, torch.Tensor], torch.dtype]) -> None:
    """What a checkpoint holds gets the dtype of loading; other buffers stay as they were made."""
    stored = module.state_dict().keys()
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if name in stored and tensor.is_floating_point():
            tensor.data = tensor.data.to(loaded(name, tensor))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
