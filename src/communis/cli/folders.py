"""Folders that a command is to read: refusals that need neither torch nor pandas."""

from __future__ import annotations

from pathlib import Path

from communis.core.errors import CommunisError

OF_A_RUN = ("config.toml", "records.jsonl")  # one of them may be lost


def refuse_absent(folder: Path) -> None:
    """Refuses a folder that does not exist."""
    if not folder.exists():
        raise CommunisError(f"{folder}: no such folder")


def refuse_without_runs(folder: Path) -> None:
    """Refuses a folder without a file of a run in it or below it."""
    refuse_absent(folder)
    if not any(path.name in OF_A_RUN for path in folder.rglob("*")):
        raise CommunisError(f"{folder}: holds no run with a finished round")


def refuse_without_configuration(folder: Path) -> None:
    """Refuses a folder without the configuration of a run in it or below it."""
    refuse_absent(folder)
    if not any(folder.rglob("config.toml")):
        raise CommunisError(f"{folder}: no run to resume here (no config.toml)")


def refuse_without_any_run(folder: Path) -> None:
    """Refuses a folder without a run in it or below it, be it planned, begun or finished."""
    refuse_absent(folder)
    if not any(path.name in OF_A_RUN for path in folder.rglob("*")):
        raise CommunisError(
            f"{folder}: holds no run to watch (no config.toml and no records.jsonl in it or below)"
        )
