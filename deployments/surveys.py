"""What a model is made of, found out without its weights, or read from an earlier survey's JSON.

Knows where configuration files come from and how a survey is written; decides nothing. Importing
this imports no torch, and reading a survey does not either.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.architectures import Architecture, find_architecture, shipped_names
from deployments.config import AppConfig, ModelConfig
from deployments.errors import ConfigError, ModelError
from deployments.estimates import with_estimates
from deployments.loading import INDEX_NAME, is_hub_name
from deployments.paths import resolve
from deployments.serve_file import read_serve_file
from deployments.stored import disagreements
from deployments.weight_files import read_tensors
from offload import ComponentFacts, OffloadError, facts_from_dict, facts_to_dict, with_known

if TYPE_CHECKING:
    from torch import nn  # at run time it would import torch

FIELDS = ("model", "components", "warnings")
SERVE_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The components of one model; ``warnings`` are for whoever plans from it."""

    model: str
    facts: tuple[ComponentFacts, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``read_survey`` gives it back."""
        return {
            "model": self.model,
            "components": facts_to_dict(self.facts),
            "warnings": list(self.warnings),
        }


def survey_model(config: AppConfig) -> Survey:
    """Units and bytes of every component, from configuration files; opens no weight."""
    from deployments.blueprint import build_modules  # late, both: they import torch
    from offload import survey_component

    found = find_architecture(config.model)
    modules = build_modules(config.model, config.components, found.folder)
    facts = tuple(survey_component(module, name) for name, module in modules.items())
    return Survey(
        model=config.model.name,
        facts=_with_known(facts, config),
        warnings=tuple(_warnings(found, modules)),
    )


def read_survey(path: str, config: AppConfig) -> Survey:
    """An earlier survey of the model; ConfigError where the file holds none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--facts: {path} cannot be read ({error}); {_HINT}") from error
    if not isinstance(content, dict) or set(content) != set(FIELDS):
        raise ConfigError(f"--facts: {path} is no survey ({', '.join(FIELDS)}); {_HINT}")
    try:
        facts = facts_from_dict(content["components"])
    except OffloadError as error:
        raise ConfigError(f"--facts: {path}: {error}") from error
    warnings = content["warnings"]
    if not isinstance(warnings, list):
        raise ConfigError(f"--facts: {path}: warnings are {warnings!r}; give a list of lines")
    warnings = [str(line) for line in warnings]
    if content["model"] != config.model.name:
        warnings.append(f"{path} is a survey of {content['model']}, not of {config.model.name}")
    return Survey(
        model=str(content["model"]),
        facts=_with_known(facts, config),
        warnings=tuple(warnings),
    )


_HINT = "write one with `tenure survey MODEL --json`"


def read_config(named: str) -> AppConfig:
    """A Serve file, a model folder, a shipped architecture (by its Serve file if there is one), or
    a hub name whose files are in the local cache."""
    if named.endswith(SERVE_FILES):
        return read_serve_file(named).config
    if (Path(resolve(named)) / INDEX_NAME).is_file():
        return _bare(named)
    if named in shipped_names():
        file = f"configs/{named}.yaml"
        return read_serve_file(file).config if Path(resolve(file)).is_file() else _bare(named)
    if is_hub_name(named):
        return _bare(named)
    raise ConfigError(
        f"{named} is neither a Serve file (.yaml), a folder that holds {INDEX_NAME}, a hub name, "
        f"nor one of the architectures that come with Tenure: {', '.join(shipped_names())}"
    )


def _with_known(facts: tuple[ComponentFacts, ...], config: AppConfig) -> tuple[ComponentFacts, ...]:
    """With what the Serve file says of activations and passes, and else with estimates."""
    given = config.activation_bytes
    return tuple(
        replace(one, activation_source="the Serve file", activation_with=())
        if given.keys() & {one.name, one.group, "all"}
        else one
        for one in with_known(with_estimates(facts, config), given, config.passes)
    )


def _bare(name: str) -> AppConfig:
    return AppConfig(model=ModelConfig(name=name))


def _warnings(found: Architecture, modules: "dict[str, nn.Module]") -> Iterator[str]:
    if found.notice:
        yield found.notice
    for name, module in modules.items():
        folder = found.folder.path / name
        if not any(folder.glob("*.safetensors*")):
            continue
        built = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
        once = {key for key, _ in (*module.named_parameters(), *module.named_buffers())}
        try:
            yield from disagreements(name, built, read_tensors(folder, name), built.keys() - once)
        except ModelError as error:  # planning does without
            yield str(error)
