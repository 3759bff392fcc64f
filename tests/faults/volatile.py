"""A disk that forgets: what was not synced when the power is cut may be there, in part, or not.

It stands in for the functions of `communis.core.disk`, does what they do, and remembers which of it
a real disk would have promised to keep. Whether these functions really sync is for `make assault`,
which cuts a real file system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from communis.core import disk


class PowerCut(BaseException):
    """Not an Exception: nothing may catch it and go on."""


Change = Callable[[dict[Path, bytes]], None]  # of the files that a disk holds


@dataclass
class Volatile:
    folder: Path
    cut_at: int = -1  # the operation before which the power is cut; -1: never
    operations: int = 0
    kept: dict[Path, bytes] = field(default_factory=dict)  # what is safe
    pending: list[Change] = field(default_factory=list)  # what is not, in order
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("write_file", "write_at", "append", "replace_file", "move", "remove", "sync"):
            monkeypatch.setattr(disk, name, self._instead(name, getattr(disk, name)))

    def _instead(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def operation(path: Path, *arguments: object) -> None:
            if self.operations == self.cut_at:
                raise PowerCut
            self.operations += 1
            getattr(self, f"_{name}")(path, *arguments)
            real(path, *arguments)

        return operation

    def _write_file(self, path: Path, data: bytes) -> None:
        self.pending.append(lambda files: files.update({path: self._partly(b"", data)}))

    def _write_at(self, path: Path, data: bytes, place: int) -> None:
        def written(files: dict[Path, bytes]) -> None:
            before = files.get(path, b"")[:place]
            hole = bytes(place - len(before))  # what was to be there was lost
            files[path] = self._partly(before + hole, data)

        self.pending.append(written)

    def _append(self, path: Path, text: str) -> None:
        added = text.encode()
        self.pending.append(
            lambda files: files.update({path: self._partly(files.get(path, b""), added)})
        )

    def _move(self, path: Path, to: Path) -> None:
        def moved(files: dict[Path, bytes]) -> None:
            if path in files:
                files[to] = files.pop(path)

        self.pending.append(moved)

    def _remove(self, path: Path) -> None:
        self.pending.append(lambda files: files.pop(path, None) and None)

    def _replace_file(self, path: Path, data: bytes) -> None:
        """Syncing the folder's entries makes earlier changes of names in it safe as well; the
        harmless side of that is not modelled, except that moves before it are kept."""
        for change in [c for c in self.pending if c.__name__ == "moved"]:
            change(self.kept)
            self.pending.remove(change)
        self.kept[path] = data

    def _sync(self, folder: Path, since: int = 0) -> None:
        self.pending.clear()
        self.kept = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def _partly(self, before: bytes, added: bytes) -> bytes:
        """What a cut leaves of data that was on its way: all, nothing, a beginning, or zeros."""
        some = added[: int(self.rng.integers(len(added) + 1))]
        outcomes = [before + added, before, before + some, before + bytes(len(added))]
        return outcomes[int(self.rng.integers(len(outcomes)))]

    def lose(self) -> None:
        """The folder becomes what a disk may hold after the cut."""
        files = dict(self.kept)
        for change in self.pending:
            if self.rng.random() < 0.5:
                change(files)
        for path in [p for p in self.folder.rglob("*") if p.is_file() and p.name != "lock"]:
            if path not in files:
                path.unlink()
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
