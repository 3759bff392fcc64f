"""Wical: people counted from Wi-Fi. 0-5 in a small room, 0-10 in a medium one, three days each.

Choi et al., Wi-CaL, 2022. One file per room, day ("sess") and number of people P, 199 rows of 420
numbers that the owner computed from channel state information. What the columns are is not
documented. Seen in the files: four groups of 105 columns; in each group seven runs of 13 columns
that move together, then 14 more. Neighbouring rows correlate at .69 and rows two to five apart at
.41 to .39, so neighbours seem to share packets: never split without a gap of one row.

Rows carry no time; they are taken as one a second. Files of the localisation task (S=*.csv) are
not read.
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
    """Settings of `[data] name = "wical"`. Six environments, each a room on one day, are the
    subjects: 1-3 the small room, 4-6 the medium one."""

    window: float = 1.0  # seconds per window; one row is one second
    layout: Literal["signal", "features"] = "signal"  # (1, 420) or (420 channels, 1) per row

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate:
            raise CommunisError("wical: data.rate must stay 0; rows are features, not samples")
        for key in ("window", "stride"):
            value = getattr(self, key)
            if self.layout == "signal" and value % 1:
                raise CommunisError(
                    f"wical: data.{key} = {value:g} would mix parts of two rows; as a signal, a "
                    "row is one second: choose whole seconds"
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
    """Room, session and number of people, from the names of folders and file."""
    room, session = path.parent.parent.name, path.parent.name
    people = re.fullmatch(r"P=(\d+)", path.stem)
    if room not in ROOMS:
        raise CommunisError(f"{path}: unknown room {room!r}; expected {' or '.join(ROOMS)}")
    if session not in (f"sess{n + 1}" for n in range(SESSIONS)):
        raise CommunisError(
            f"{path}: unknown session {session!r}; expected sess1 to sess{SESSIONS}"
        )
    if not people or people[1] not in LABELS:
        raise CommunisError(f"{path}: the name must be P=0.csv to P=10.csv, the number of people")
    return ROOMS.index(room) + 1, int(session[4:]), int(people[1])


def _check(path: Path, rows: Array) -> None:
    """All official files have as many rows, without NaN or infinity; another is spoilt."""
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise CommunisError(
            f"{path}, line {bad[0] + 1}: NaN or infinity; the official file has none: get it again"
        )
    if len(rows) != ROWS:
        raise CommunisError(
            f"{path}: {len(rows)} rows; the official file has {ROWS}: a line is missing or "
            "doubled, get it again"
        )
