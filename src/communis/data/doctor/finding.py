"""Finding: one result of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note", "ok"]


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    level: Level
    about: str  # the subject of the check: "files", "windows", a modality, ...
    text: str  # the result
    fix: str = ""  # advice; empty: none
