"""Own: a folder of your own CSV, Parquet or NPY files, described by a manifest `communis.toml`.

`communis data init FOLDER` examines the files and writes a first manifest; the keys are explained
in `communis.data.own.manifest` and in docs/reference/data/own.md. A recording ends where subject,
scene, session or trial change, where time starts again, and at a pause. Samples with irregular time
stamps are interpolated to a constant rate; empty cells, gaps, and sensors whose file is missing
become NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from communis.data import own
from communis.data.own.joined import grouped, matches
from communis.data.own.manifest import NAME, load
from communis.data.own.reading import dataset
from communis.data.recordings.about import About
from communis.data.recordings.recording import Dataset
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="yours",
    files=NAME,
    how="Set data.folder to a folder of yours; `communis data init FOLDER` describes its files.",
)


@dataclass(frozen=True)
class Own(Recorded):
    """Settings of `[data] name = "own"`; everything else is in the folder's manifest."""

    why_unread: ClassVar[str] = f"{NAME} leaves them out, or has no pattern for them"

    def files(self) -> list[Path]:
        """Returns the manifest and the files that it describes, with those of the labels."""
        manifest = load(self.place)
        paths: list[Path] = []
        for group in grouped(self.place, manifest):
            paths += group.paths.values()
        if manifest.side_pattern:
            paths += [path for path, _ in matches(self.place, manifest.side_pattern)]
        return [self.place / NAME, *sorted(paths)]

    def code(self) -> list[Path]:
        return [*super().code(), *sorted(Path(own.__file__).parent.glob("*.py"))]

    def read(self, folder: Path) -> Dataset:
        return dataset(folder)
