"""Finding: what the doctor says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note", "ok"]


@dataclass(frozen=True)
class Finding:
    level: Level
    about: str  # what was looked at
    text: str  # what was found
    fix: str = ""
