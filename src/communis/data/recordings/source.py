"""Recorded: what all dataset sources share that read recordings from files.

A source is a module in `communis.data.sources` with a constant `ABOUT` and a subclass of `Recorded`
that adds its own settings and `read`. Everything after reading is done here: windows are cut once,
kept on disk and mapped into memory; the split is made anew each time, for it costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

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

    folder: str = ""  # where its files lie; empty: its name below the data home
    window: float = 2.0  # seconds per window
    stride: float = 0.0  # seconds from one window to the next; 0: windows do not overlap
    rate: float = 0.0  # Hz that all time series are resampled to; 0: each keeps its own
    split: SplitKind = "time"  # what may not be in training and test at once
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # for training, validation and test
    gap: float = 1.0  # window lengths left out between the parts of a stretch of one class
    apart: float = 0.0  # seconds left out between the parts of a recording, whatever their class
    held_out: tuple[int, ...] = ()  # subjects, scenes, sessions or trials to test on

    def __post_init__(self) -> None:
        self._cut()
        self._splits()

    def read(self, folder: Path) -> Dataset:
        """The recordings below a folder, in the owner's official format."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def about(self) -> About:
        found: About = sys.modules[type(self).__module__].ABOUT
        return found

    @property
    def place(self) -> Path:
        return Path(self.folder).expanduser() if self.folder else home() / self.name

    def files(self) -> list[Path]:
        """The dataset's files, or an error that says how to get them."""
        try:
            return matching(self.place, self.about.files)
        except CommunisError as error:
            raise CommunisError(
                f"{self.name}: {error}. Get it with `communis data fetch {self.name}`, or set "
                "data.folder to where it lies"
            ) from None

    def sources(self) -> list[Path]:
        """All files that decide what the windows hold; more than `files` where a recording is
        spread over several."""
        return self.files()

    def code(self) -> list[Path]:
        """The code that reads it: when that changes, windows are made again."""
        return [Path(str(sys.modules[type(self).__module__].__file__))]

    def open(self) -> Dataset:
        """The recordings, read as they are asked for."""
        self.files()
        return self._dataset()

    def load(self, streams: Streams) -> Windows:
        kind = key(self.sources(), self.place, self._reading(), self.code())
        place = home() / "windows" / f"{self.name}-{kind}"
        return self._splits().apply(kept(self._dataset(), self._cut(), place), streams)

    def _dataset(self) -> Dataset:
        """What `read` finds; whatever goes wrong on the way is an error with the place."""
        with reading(self.place, f"{self.name} dataset"):
            found = self.read(self.place)
        return replace(found, recordings=self._each(found.recordings))

    def _each(self, recordings: Iterable[Recording]) -> Iterator[Recording]:
        left = iter(recordings)
        where = f"{self.place}, the first recording"
        while True:
            # A number too large for float32 is taken as missing, like every infinity.
            quiet = np.errstate(over="ignore", invalid="ignore")
            with reading(where, f"{self.name} dataset"), quiet:
                found = next(left, None)
            if found is None:
                return
            yield found
            where = f"{self.place}, after {found.name}"

    def _cut(self) -> Cut:
        return Cut(self.window, self.stride, self.rate)

    def _splits(self) -> Splits:
        return Splits(self.split, self.shares, self.gap, self.held_out, self.apart)

    def _reading(self) -> dict[str, Any]:
        """The settings that decide what the windows hold."""
        without = {"folder", "split", "shares", "gap", "apart", "held_out"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in without}
