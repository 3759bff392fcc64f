"""Data files with changed bytes: read, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

from communis import CommunisError
from tests.faults.assault.case import Case
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome
from tests.faults.hostile_files import Case as File
from tests.faults.hostile_files import corpus, mutate

LIMIT = 60.0


def attempt(case: Case) -> Outcome:
    rng = case.rng
    folder = case.shared / "files"
    files = _corpus(folder)
    name, path, read = files[case.number % len(files)]
    good = path.read_bytes()
    path.write_bytes(mutate(good, rng))
    try:
        return _read(read, path, name, folder)
    finally:
        path.write_bytes(good)


def _read(read: Callable[[Path], object], path: Path, name: str, folder: Path) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except CommunisError as error:
        text = str(error)
        if path.name in text or str(folder) in text:  # a file may name another that is not there
            return REFUSED
        return Outcome("nameless refusal", f"{name}: {text}")
    return SURVIVED


@cache
def _corpus(folder: Path) -> list[File]:
    return corpus(folder)
