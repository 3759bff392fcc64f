"""A disk that is full, at any moment: one line that names the folder and the way out, and the run
goes on to the same numbers when there is space again."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Run
from communis.core import disk
from tests.faults.test_power_cuts import content
from tests.faults.test_resume import started

MOMENTS = 8  # of each experiment, spread over its whole length
NAMES = ("fedper, few checkpoints", "an attack that begins late", "dropout and offline",
         "local privacy")  # fmt: skip


@dataclass
class Full:
    """Of the writes below a folder, one number `at` and all later ones fail, half done."""

    folder: Path
    at: int = -1  # -1: none
    writes: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened, made = Path.open, Path.mkdir

        def open_(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            file = opened(path, mode, *arguments, **more)
            return (
                Limited(file, self) if self._counts(path) and mode in ("wb", "xb", "ab") else file
            )

        def mkdir(path: Path, *arguments: Any, **more: Any) -> None:
            if self._counts(path) and not path.exists():
                self.take()
            made(path, *arguments, **more)

        monkeypatch.setattr(Path, "open", open_)
        monkeypatch.setattr(Path, "mkdir", mkdir)

    def _counts(self, path: Path) -> bool:
        return path.is_relative_to(self.folder)

    def take(self) -> None:
        self.writes += 1
        if 0 <= self.at < self.writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class Limited:
    """An open file on that disk."""

    file: Any
    full: Full

    def write(self, data: bytes) -> int:
        try:
            self.full.take()
        except OSError:
            self.file.write(bytes(data)[: len(data) // 2])
            raise
        return int(self.file.write(data))

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def attempt(folder: Path, name: str) -> None:
    with started(folder, name) as run:
        list(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_named_and_the_run_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Full(tmp_path / "whole")
    with monkeypatch.context() as patched:
        counted.install(patched)
        attempt(tmp_path / "whole", name)
    expected = content(tmp_path / "whole")
    moments = np.unique(np.linspace(0, counted.writes - 1, MOMENTS).astype(int))
    for moment in moments.tolist():
        folder = tmp_path / f"full{moment}"
        with monkeypatch.context() as patched:
            Full(folder, at=moment).install(patched)
            with pytest.raises(CommunisError) as caught:
                attempt(folder, name)
        said = str(caught.value)
        assert said.startswith(str(folder)), said
        assert "No space left on device" in said
        assert "free some space, then go on with the same command" in said
        assert "\n" not in said
        assert not list(folder.rglob("*.partial")), "what is half written takes space"
        attempt(folder, name)
        assert content(folder) == expected, f"full at write {moment}"


def test_a_run_can_go_on_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of the records that was half written must not stay there."""
    name = "fedper, few checkpoints"
    attempt(tmp_path / "whole", name)
    run: Run = started(tmp_path / "run", name)
    next(iter(run))
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with monkeypatch.context() as patched:
        full = Full(tmp_path / "run" / "records.jsonl", at=0)
        full.install(patched)
        with pytest.raises(CommunisError, match=re.escape("records.jsonl: cannot be written")):
            next(iter(run))
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before
    with run:
        list(run)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_half_a_line_does_not_stay_when_writing_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would follow it in the same line."""
    path = tmp_path / "records.jsonl"
    disk.append(path, "one\n")
    opened = Path.open

    class Interrupted:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Interrupted:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[:2])
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *arguments: Interrupted(opened(*arguments)))
        with pytest.raises(KeyboardInterrupt):
            disk.append(path, "two\n")
    disk.append(path, "three\n")
    assert path.read_text() == "one\nthree\n"
