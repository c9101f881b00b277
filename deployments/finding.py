"""One line of ``tenure doctor``.

Knows how a finding reads; nothing of what was examined.
"""

from dataclasses import dataclass
from typing import Self

NAME_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found under one heading, and what to do where it is not ``ok``."""

    name: str
    ok: bool
    text: str

    @classmethod
    def fine(cls, name: str, text: str) -> Self:
        return cls(name=name, ok=True, text=text)

    @classmethod
    def to_do(cls, name: str, text: str) -> Self:
        return cls(name=name, ok=False, text=text)

    @property
    def line(self) -> str:
        return f"{self.name:<{NAME_WIDTH}} {'ok' if self.ok else 'TO DO':<6} {self.text}"
