"""Before anything starts: is the model whole, and does every wish name a part of it?

Reads names and headers only; no torch.
"""

import difflib

from deployments.config import AppConfig
from deployments.errors import ConfigError
from deployments.loading import WITHOUT_WEIGHTS, ModelFolder, check_model_folder, find_model_folder
from offload import GROUPS


def check_model(config: AppConfig) -> None:
    """ModelError or ConfigError where no replica could start; a model to be fetched passes."""
    model = config.model
    found = find_model_folder(
        model.source, revision=model.revision, local_files_only=model.local_files_only
    )
    if found is not None:
        check_names(config, check_model_folder(found))


def check_names(config: AppConfig, folder: ModelFolder) -> None:
    """Refuse a component that the pipeline does not have."""
    parts = [
        name
        for name, files in folder.components.items()
        if not WITHOUT_WEIGHTS.search(files.class_name)
    ]
    for name in config.components:
        if name not in parts and name not in GROUPS:
            near = difflib.get_close_matches(name, [*parts, *GROUPS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"components names {name!r}, which {folder.pipeline_class} does not have: it has "
                f"{', '.join(parts)}, and the groups are {', '.join(GROUPS)}{hint}"
            )
