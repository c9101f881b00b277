"""What a calibration measured, kept for the next start of a replica on such a card.

A record is one JSON file per model and kind of card, replaced whole. One that was written under
other circumstances is not used, and says which. It knows nothing of how anything was measured.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offload import ComponentMeasured, Measured

VERSION = 1  # of the file's layout

Key = Mapping[str, Any]  # what must be the same for a record to hold; JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was measured, and whether the plan that followed from it was kept."""

    measured: Measured
    kept: bool
    reason: str  # why not, "" where it was
    seconds: float  # median of a usual request under the plan in force
    peak_bytes: int  # of a request under it

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Record":
        """ValueError, TypeError or KeyError on what is no record."""
        return cls(**{**values, "measured": _measured(values["measured"])})


class Records:
    """The folder of records, for one replica."""

    def __init__(
        self, folder: str | None, model: str, card: str, key: Key, say: Callable[[str], None]
    ) -> None:
        """``folder`` None: nothing is kept, and nothing is said about it."""
        self._path = Path(folder).expanduser() / file_name(model, card) if folder else None
        self._key = dict(json.loads(json.dumps(key)))  # as it will be read again
        self._say = say

    def read(self) -> Record | None:
        """The record of such a start, or None, with a line where there is one of another."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            values = json.loads(self._path.read_text())
            if values["version"] != VERSION:
                raise ValueError(f"its layout is {values['version']}, not {VERSION}")
            changed = differences(values["key"], self._key)
            record = Record.from_dict(values["record"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._ignored(f"it cannot be read ({type(error).__name__}: {error})")
            return None
        if changed:
            self._ignored("; ".join(changed))
            return None
        return record

    def write(self, record: Record) -> None:
        """Replace the file; a folder that cannot be written costs a line, not the start."""
        if self._path is None:
            return
        values = {"version": VERSION, "key": self._key, "record": asdict(record)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._path, json.dumps(values, indent=1))
        except OSError as error:
            self._say(f"the calibration record {self._path} could not be written: {error}")

    def _ignored(self, why: str) -> None:
        self._say(f"the calibration record {self._path} is not used: {why}")


def file_name(model: str, card: str) -> str:
    """``demo--mini-5090.json``."""
    return "--".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part) for part in (model, card)) + ".json"


def differences(then: Key, now: Key) -> list[str]:
    """What changed: ``limits: max_pixels 1048576, now 4194304``."""
    changed = []
    for name in dict.fromkeys([*then, *now]):
        before, after = then.get(name), now.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            inner = ", ".join(differences(before, after))
            changed.append(f"{name}: {inner}")
        else:
            changed.append(f"{name} {before}, now {after}")
    return changed


def _measured(values: Mapping[str, Any]) -> Measured:
    components = {name: _component(one) for name, one in values["components"].items()}
    return Measured(**{**values, "components": components})


def _component(values: Mapping[str, Any]) -> ComponentMeasured:
    lists = {
        "order": tuple(values["order"]),
        "gaps": tuple(tuple(gap) for gap in values["gaps"]),
    }
    return ComponentMeasured(**{**values, **lists})


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: another replica may read or write it at the same moment."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(name, path)
