"""Recorded: the base of all dataset sources that read recordings from files.

A source is a module in `communis.data.sources` with a constant `ABOUT` and a subclass of `Recorded`
that adds its own settings and `read`. Everything after reading is done here: windows are cut once,
cached on disk and mapped into memory; the split is computed on every load, because it is cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.about import About
from communis.data.recordings.cache import kept, key
from communis.data.recordings.cut import Cut
from communis.data.recordings.files import home, matching, reading
from communis.data.recordings.recording import Dataset, Recording
from communis.data.recordings.splits import SplitKind, Splits
from communis.data.recordings.windows import Windows


@dataclass(frozen=True)
class Recorded:
    """Settings of every dataset that is read from files."""

    # Why files beside those of the dataset are not read.
    why_unread: ClassVar[str] = "their names are not the official ones"

    folder: str = ""  # folder of the files; empty: the dataset's name below the data folder
    window: float = 2.0  # length of a window in seconds
    stride: float = 0.0  # seconds from one window to the next; 0: windows do not overlap
    rate: float = 0.0  # Hz to which all time series are resampled; 0: each keeps its own rate
    split: SplitKind = "time"  # unit that is never in training and test at once
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # shares of training, validation and test
    gap: float = 1.0  # gap between the parts of a stretch of one class, in window lengths
    apart: float = 0.0  # gap between the parts of a recording, of any class, in seconds
    held_out: tuple[int, ...] = ()  # numbers of the subjects, scenes, sessions or trials to test on

    def __post_init__(self) -> None:
        self._cut()
        self._splits()

    def read(self, folder: Path) -> Dataset:
        """Returns the recordings below a folder, whose files are in the owner's official format."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def about(self) -> About:
        about: About = sys.modules[type(self).__module__].ABOUT
        return about

    @property
    def place(self) -> Path:
        return Path(self.folder).expanduser() if self.folder else home() / self.name

    def files(self) -> list[Path]:
        """Returns the dataset's files; raises an error that says how to get them if there are
        none."""
        try:
            return matching(self.place, self.about.files)
        except CommunisError as error:
            raise CommunisError(
                f"{self.name}: {error}. Get it with `communis data fetch {self.name}`, or set "
                "data.folder to the folder that holds it"
            ) from None

    def sources(self) -> list[Path]:
        """Returns all files that decide the content of the windows; these are more than `files` if
        a recording is spread over several files."""
        return self.files()

    def code(self) -> list[Path]:
        """Returns the files of code that read the dataset: when they change, windows are cut
        again."""
        return [Path(str(sys.modules[type(self).__module__].__file__))]

    def open(self) -> Dataset:
        """Returns the dataset; recordings are read when they are iterated over."""
        self.files()
        return self._dataset()

    def load(self, streams: Streams) -> Windows:
        digest = key(self.sources(), self.place, self._reading(), self.code())
        place = home() / "windows" / f"{self.name}-{digest}"
        windows = kept(self._dataset(), self._cut(), place)
        return self._splits().apply(windows, streams)

    def _dataset(self) -> Dataset:
        """Returns the dataset that `read` finds; every failure becomes an error that names the
        place."""
        with reading(self.place, f"{self.name} dataset"):
            dataset = self.read(self.place)
        return replace(dataset, recordings=self._each(dataset.recordings))

    def _each(self, recordings: Iterable[Recording]) -> Iterator[Recording]:
        remaining = iter(recordings)
        where = f"{self.place}, the first recording"
        while True:
            # A number too large for float32 becomes infinite, and every infinity counts as missing.
            quiet = np.errstate(over="ignore", invalid="ignore")
            with reading(where, f"{self.name} dataset"), quiet:
                recording = next(remaining, None)
            if recording is None:
                return
            yield recording
            where = f"{self.place}, after {recording.name}"

    def _cut(self) -> Cut:
        return Cut(self.window, self.stride, self.rate)

    def _splits(self) -> Splits:
        return Splits(self.split, self.shares, self.gap, self.held_out, self.apart)

    def _reading(self) -> dict[str, Any]:
        """Returns the settings that decide the content of the windows."""
        without = {"folder", "split", "shares", "gap", "apart", "held_out"}
        names = [f.name for f in fields(self) if f.name not in without]
        return {name: getattr(self, name) for name in names}
