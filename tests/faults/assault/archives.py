"""Archives that are meant to do harm, as they are and with changed bytes: unpacked where they
should be, or refused by name."""

from __future__ import annotations

import shutil
import warnings
from functools import cache
from pathlib import Path

from communis import CommunisError
from tests.faults.assault.case import Case
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome
from tests.faults.hostile_files import Case as File
from tests.faults.hostile_files import archives, escaped, mutate

LIMIT = 60.0


def attempt(case: Case) -> Outcome:
    rng = case.rng
    folder = case.shared / "deep" / "down" / "here"  # so that a few steps up are still ours
    files = _archives(folder)
    name, path, unpack = files[case.number % len(files)]
    made = path.read_bytes()
    if case.number >= len(files):  # once as they are
        path.write_bytes(mutate(made, rng))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unpack(path)
        outcome = SURVIVED
    except CommunisError as error:
        known = path.name in str(error)
        outcome = REFUSED if known else Outcome("nameless refusal", f"{name}: {error}")
    finally:
        path.write_bytes(made)
    outside = [*escaped(folder), *_above(case.shared)]
    shutil.rmtree(folder / "unpacked", ignore_errors=True)
    if outside:
        for stray in outside:
            stray.unlink(missing_ok=True)
        return Outcome("escape", f"{name}: {', '.join(map(str, outside))}")
    return outcome


def _above(shared: Path) -> list[Path]:
    """What lies between the folder of all and that of the archives, where nothing may be."""
    steps = (shared / "deep", shared / "deep" / "down")
    return [path for step in steps for path in step.iterdir() if path.name not in ("down", "here")]


@cache
def _archives(folder: Path) -> list[File]:
    return archives(folder)
