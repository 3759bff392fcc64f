"""Wi-CaL: counting of people by Wi-Fi: 0-5 in a small room, 0-10 in a medium room, three days each.

Choi et al., Wi-CaL, 2022. One file per room, day ("sess") and number of people P, 199 rows of 420
numbers that the owner computed from channel state information. The columns are not documented. The
files show four groups of 105 columns; in each group seven runs of 13 correlated columns, then 14
more. Neighbouring rows correlate at .69 and rows two to five apart at .41 to .39, so neighbours
seem to share packets: a split needs a gap of at least one row.

The rows have no time stamps; they are treated as one per second. Files of the localisation task
(S=*.csv) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.tasks import Counting
from communis.data.recordings.about import About
from communis.data.recordings.files import matching, numbers
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="none stated",
    citation="Choi et al. 2022, doi:10.1109/ACCESS.2022.3155812",
    address="https://github.com/narajinx/Wi-CaL-WiFi-Crowd-Estimation",
    files="*/datasets/*-room/sess*/P=*.csv",
    count=51,
    how="Clone or download the authors' repository and keep its folder `datasets`.",
)
LABELS = tuple(str(people) for people in range(11))
ROOMS = ("small-room", "medium-room")
SESSIONS = 3
FEATURES = 420
ROWS = 199


@dataclass(frozen=True)
class Wical(Recorded):
    """Settings of `[data] name = "wical"`. The subjects are six environments, each a room on one
    day: 1-3 the small room, 4-6 the medium room."""

    window: float = 1.0  # length of a window in seconds; one row is one second
    # shape of a row: signal: 1 channel of 420 steps; features: 420 channels of 1 step
    layout: Literal["signal", "features"] = "signal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate:
            raise CommunisError(
                f"wical: data.rate must be 0, got {self.rate:g}; rows are features, not samples"
            )
        for key in ("window", "stride"):
            value = getattr(self, key)
            if self.layout == "signal" and value % 1:
                raise CommunisError(
                    f"wical: data.{key} = {value:g} would mix parts of two rows; with data.layout "
                    "= 'signal' a row is one second: choose whole seconds"
                )

    def read(self, folder: Path) -> Dataset:
        return Dataset(self._recordings(folder), Counting(len(LABELS)), LABELS, {"csi": "a.u."})

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        for path in matching(folder, ABOUT.files):
            room, session, people = _place(path)
            rows = numbers(path, FEATURES, ",")
            _check(path, rows)
            if self.layout == "signal":
                stream = Stream(rows.reshape(-1, 1), float(FEATURES))
            else:
                stream = Stream(rows, 1.0)
            yield Recording(
                {"csi": stream},
                people,
                subject=SESSIONS * (room - 1) + session,
                scene=room,
                session=session,
                name=path.relative_to(folder).as_posix(),
            )


def _place(path: Path) -> tuple[int, int, int]:
    """Returns room, session and number of people from the names of folders and file."""
    room = path.parent.parent.name
    session = path.parent.name
    people = re.fullmatch(r"P=(\d+)", path.stem)
    if room not in ROOMS:
        raise CommunisError(f"{path}: unknown room {room!r}; expected {' or '.join(ROOMS)}")
    if session not in (f"sess{n + 1}" for n in range(SESSIONS)):
        raise CommunisError(
            f"{path}: unknown session {session!r}; expected sess1 to sess{SESSIONS}"
        )
    if not people or people[1] not in LABELS:
        raise CommunisError(f"{path}: expected P=0.csv to P=10.csv, the number of people")
    return ROOMS.index(room) + 1, int(session[4:]), int(people[1])


def _check(path: Path, rows: Array) -> None:
    """Raises an error for a damaged file: official files have 199 rows of finite numbers."""
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise CommunisError(
            f"{path}, line {bad[0] + 1}: NaN or infinity, expected finite numbers: get it again"
        )
    if len(rows) != ROWS:
        raise CommunisError(
            f"{path}: {len(rows)} rows, expected {ROWS}: lines are missing or repeated, get it "
            "again"
        )
