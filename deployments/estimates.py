"""Activations that were counted ahead for a shipped architecture, where nobody has measured them.

Reads ``activations.json`` beside an architecture; imports no torch and counts nothing itself:
``scripts/activations.py`` wrote the file. A figure of the Serve file or of a warm-up always wins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments.architectures import shipped_architecture
from deployments.config import AppConfig
from deployments.loading import DTYPE_BYTES
from deployments.weight_files import read_json
from offload import ComponentFacts

FILE_NAME = "activations.json"
ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one component."""

    num_bytes: int  # the most that lives beside its weights while it runs
    with_settings: Mapping[str, int]  # the same with a setting on
    source: str  # "estimated for 1024x1024 and a prompt of 512 tokens"

    def put_into(self, facts: ComponentFacts, settings: Iterable[str]) -> ComponentFacts:
        """``settings`` are on; what each other one would make of it is in the facts as well."""
        on = [name for name in settings if name in self.with_settings]
        others = [(name, size) for name, size in self.with_settings.items() if name not in on]
        return replace(
            facts,
            activation_bytes=min([self.with_settings[name] for name in on] or [self.num_bytes]),
            activation_source=self.source,
            activation_with=tuple(others),
        )


def with_estimates(
    facts: Iterable[ComponentFacts], config: AppConfig
) -> tuple[ComponentFacts, ...]:
    """The same facts; those without an activation get the estimate, where there is one."""
    known = estimates_of(config)
    return tuple(
        known[one.name].put_into(one, _settings(config, one.name))
        if one.name in known and _is_open(one)
        else one
        for one in facts
    )


def estimates_of(config: AppConfig) -> dict[str, Estimate]:
    """Component -> estimate, for the dtypes that the model is loaded in."""
    model = config.model
    folder = shipped_architecture(model.name) or shipped_architecture(model.path)
    if folder is None or not (folder / FILE_NAME).is_file():
        return {}
    content = read_json(folder / FILE_NAME)
    source = f"{ESTIMATED} for {content['of']}"
    return {
        name: _estimate(entry, model.dtype_of(name), source)
        for name, entry in content["components"].items()
    }


def _estimate(entry: Mapping[str, Any], dtype: str, source: str) -> Estimate:
    wide, counted = DTYPE_BYTES[dtype], DTYPE_BYTES[entry["dtype"]]
    return Estimate(
        num_bytes=entry["activation_bytes"] * wide // counted,
        with_settings={name: size * wide // counted for name, size in entry["with"].items()},
        source=source,
    )


def _settings(config: AppConfig, name: str) -> list[str]:
    return ["tiling"] if name in config.components and config.components[name].tiling else []


def _is_open(facts: ComponentFacts) -> bool:
    return not facts.activation_bytes or facts.activation_source.startswith(ESTIMATED)
