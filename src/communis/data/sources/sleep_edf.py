"""Sleep_edf: nights of 78 people at home: EEG, EOG, EMG, breath, temperature and sleep stages.

Sleep-EDF Database Expanded 1.0.0 (Kemp et al. 2000), PhysioNet. A night is a pair of EDF files,
`sleep-cassette/SC4ssNE0-PSG.edf` and `SC4ssNEs-Hypnogram.edf`: ss is the subject, N the night, s
the scorer, so the two names differ in one letter, which is not the same in every pair.

Data records of the polysomnograms last 30 s and every signal has its own number of samples per
record; rates are that number divided by the duration of a record. In the cassette study the EMG is
an envelope of 1 Hz, in the telemetry study a signal of 100 Hz. Hypnograms are EDF+ annotations that
count from the same second as the signals and may go on after these have ended. The cassette ran for
about 20 hours: all but `wake_minutes` of the waking before and after sleep is left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.extras import require
from communis.core.memory import room
from communis.core.tasks import Classification
from communis.data.recordings.about import About, Download
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, reading
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording, Stream
from communis.data.recordings.source import Recorded
from communis.data.recordings.splits import SplitKind

# Subjects 0-19, the "Sleep-EDF-20" of many papers: subject and night, then the scorer's letter.
FIRST_TWENTY = """
001C 002C 011H 012C 021H 022J 031C 032P 041C 042C 051C 052C 061C 062C 071C 072H 081C 082P 091C 092C
101C 102C 111C 112C 121C 122V 131C 141U 142U 151C 152C 161C 162C 171U 172C 181C 182C 191P 192V
"""
ABOUT = About(
    licence="ODC-By 1.0",
    citation="Kemp et al. 2000, doi:10.1109/10.867928; Goldberger et al. 2000 (PhysioNet); "
    "doi:10.13026/C2X676",
    address="https://physionet.org/content/sleep-edfx/1.0.0/",
    files="sleep-*/S[CT][0-9]*.edf",
    count=394,  # 153 nights of the cassette and 44 of the telemetry study, two files each
    downloads=tuple(
        Download(f"https://physionet.org/files/sleep-edfx/1.0.0/sleep-cassette/SC4{name}.edf")
        for night in FIRST_TWENTY.split()
        for name in (f"{night[:3]}E0-PSG", f"{night[:3]}E{night[3]}-Hypnogram")
    ),
    how="The downloads are the 39 nights of the first 20 subjects; all 197 nights (8.1 GB) are at "
    "https://physionet.org/content/sleep-edfx/1.0.0/.",
    extra="edf",
)
LABELS = ("W", "N1", "N2", "N3", "REM")
STAGES = {
    "Sleep stage W": 0,
    "Sleep stage 1": 1,
    "Sleep stage 2": 2,
    "Sleep stage 3": 3,
    "Sleep stage 4": 3,  # slow-wave sleep is one stage since the rules of 2007
    "Sleep stage R": 4,
    "Sleep stage ?": UNLABELLED,
    "Movement time": UNLABELLED,
}
EPOCH = 30  # seconds that one score is for
SIGNALS = {
    "eeg_fpz_cz": "EEG Fpz-Cz",
    "eeg_pz_oz": "EEG Pz-Oz",
    "eog": "EOG horizontal",
    "emg": "EMG submental",
    "resp": "Resp oro-nasal",
    "temp": "Temp rectal",
}
UNITS = {
    "eeg_fpz_cz": "uV",
    "eeg_pz_oz": "uV",
    "eog": "uV",
    "emg": "uV",
    "resp": "a.u.",
    "temp": "degC",
}
Study = Literal["cassette", "telemetry"]
OF_STUDY: dict[Study, tuple[Modality, ...]] = {
    "cassette": tuple(SIGNALS),
    "telemetry": ("eeg_fpz_cz", "eeg_pz_oz", "eog", "emg"),
}
NAMES = {
    "cassette": re.compile(r"SC4(\d\d)([12])[A-Z]0-PSG\.edf"),
    "telemetry": re.compile(r"ST7(\d\d)([12])[A-Z]0-PSG\.edf"),
}


@dataclass(frozen=True)
class SleepEdf(Recorded):
    """Settings of `[data] name = "sleep_edf"`."""

    window: float = 30.0  # seconds per window; 30: one window per score
    split: SplitKind = "session"  # nights: stages alternate, so in time an epoch's neighbours train
    study: Study = "cassette"  # cassette: healthy, at home; telemetry: in hospital, temazepam
    modalities: tuple[str, ...] = ()  # eeg_fpz_cz, eeg_pz_oz, eog, emg, resp, temp; empty: all
    wake_minutes: float = 30.0  # of waking kept before and after sleep; negative: all of it
    subjects: tuple[int, ...] = ()  # their numbers in the file names; empty: all

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = set(self.modalities) - set(OF_STUDY[self.study])
        if unknown:
            raise CommunisError(
                f"modalities: the {self.study} study has no {', '.join(sorted(unknown))}; there "
                f"are {', '.join(OF_STUDY[self.study])}"
            )

    def read(self, folder: Path) -> Dataset:
        edf = require("edf")
        wanted = self.modalities or OF_STUDY[self.study]
        letters = {"cassette": "SC", "telemetry": "ST"}[self.study]
        nights = [
            path
            for path in matching(folder, ABOUT.files)
            if path.name.startswith(letters) and not path.name.endswith("-Hypnogram.edf")
        ]
        if not nights:
            raise CommunisError(
                f"{folder}: no {letters}*-PSG.edf, the signals of the {self.study} study"
            )
        chosen("subjects", self.subjects, sorted({self._named(path)[0] for path in nights}))

        def recordings() -> Iterator[Recording]:
            for path in nights:
                if self.subjects and self._named(path)[0] not in self.subjects:
                    continue
                yield self._night(edf, path, wanted, path.relative_to(folder).as_posix())

        return Dataset(recordings(), Classification(len(LABELS)), LABELS, _only(UNITS, wanted))

    def _named(self, path: Path) -> tuple[int, int]:
        """Subject and night, from the file's name."""
        found = NAMES[self.study].fullmatch(path.name)
        if not found:
            raise CommunisError(
                f"{path}: the name is not of the form {NAMES[self.study].pattern}, so subject and "
                "night are unknown"
            )
        return int(found[1]), int(found[2])

    def _night(self, edf: Any, path: Path, wanted: tuple[str, ...], name: str) -> Recording:
        subject, night = self._named(path)
        scores = _companion(path)
        with _opened(edf, path) as signals, _opened(edf, scores) as annotations:
            if signals.getStartdatetime() != annotations.getStartdatetime():
                raise CommunisError(
                    f"{scores}: begins at {annotations.getStartdatetime()}, but {path.name} at "
                    f"{signals.getStartdatetime()}: these are not of the same night"
                )
            whole = signals.datarecords_in_file * signals.datarecord_duration
            room(path, 8 * whole / EPOCH, f"a night of {whole:g} s")
            stages = _stages(annotations, scores, int(whole // EPOCH))
            first, last = _asleep(stages, self.wake_minutes)
            streams = {
                m: _stream(signals, path, SIGNALS[m], first * EPOCH, last * EPOCH) for m in wanted
            }
        return Recording(
            streams,
            Stream(stages[first:last], 1 / EPOCH),
            subject=subject,
            session=night,
            name=name,
        )


def _only(units: dict[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
    return {m: unit for m, unit in units.items() if m in wanted}


def _companion(path: Path) -> Path:
    """The hypnogram of a polysomnogram: any letter may name the scorer."""
    pattern = path.name.replace("0-PSG.edf", "?-Hypnogram.edf")
    found = sorted(path.parent.glob(pattern))
    if len(found) != 1:
        there = ", ".join(p.name for p in found) or "none"
        raise CommunisError(
            f"{path}: needs one hypnogram {pattern} beside it (the ? is the scorer's letter), "
            f"found {there}"
        )
    return found[0]


def _opened(edf: Any, path: Path) -> Any:
    with reading(path, "EDF file"):
        _weigh(path)
        return closing(edf.EdfReader(str(path)))


def _weigh(path: Path) -> None:
    """An error if the file is not as long as its header says, before anything is built by that
    header. The library compares the two as well, but prints what it finds."""
    with path.open("rb") as file:
        head = file.read(256)
        signals = int(head[252:256])
        records = int(head[236:244])
        of_signals = file.read(256 * max(0, signals))
    first = 216 * signals  # of the samples that each signal has in a record
    samples = [int(of_signals[at : at + 8]) for at in range(first, first + 8 * signals, 8)]
    expected = 256 * (1 + signals) + 2 * records * sum(samples)
    held = path.stat().st_size
    if held != expected or min(records, signals, *samples) < 1:
        raise CommunisError(
            f"{path}: holds {held} bytes, but its header announces {expected}: {records} records "
            f"of {signals} signals; it may have been cut short: get it again"
        )
    room(path, 8 * held, "its signals")


def _stages(annotations: Any, path: Path, epochs: int) -> Array:
    """The class of every epoch of the signals; scores after their end are left out."""
    stages = np.full(epochs, UNLABELLED, np.int64)
    with reading(path, "EDF file"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a text that is none is refused below
        onsets, durations, texts = annotations.readAnnotations()
    if len(texts) == 0:
        raise CommunisError(f"{path}: holds no annotations, expected sleep stages")
    for onset, duration, text in zip(onsets, durations, texts, strict=True):
        if text not in STAGES:
            raise CommunisError(
                f"{path}: unknown annotation {str(text)!r} at {onset:g} s; expected one of "
                f"{', '.join(STAGES)}"
            )
        if duration <= 0 or onset % EPOCH or duration % EPOCH:
            raise CommunisError(
                f"{path}: {text} at {onset:g} s for {duration:g} s; expected whole epochs of "
                f"{EPOCH} s"
            )
        stages[int(onset // EPOCH) : int((onset + duration) // EPOCH)] = STAGES[str(text)]
    return stages


def _asleep(stages: Array, wake_minutes: float) -> tuple[int, int]:
    """The first epoch to keep and the one after the last."""
    sleep = np.flatnonzero(stages > 0)
    if wake_minutes < 0 or len(sleep) == 0:
        return 0, len(stages)
    around = int(wake_minutes * 60 // EPOCH)
    return max(0, int(sleep[0]) - around), min(len(stages), int(sleep[-1]) + 1 + around)


def _stream(signals: Any, path: Path, label: str, start: int, end: int) -> Stream:
    """One signal from second `start` to second `end`."""
    labels = [found.strip() for found in signals.getSignalLabels()]
    if labels.count(label) != 1:
        raise CommunisError(f"{path}: expected one signal {label}, found {', '.join(labels)}")
    channel = labels.index(label)
    rate = signals.samples_in_datarecord(channel) / signals.datarecord_duration
    steps = round((end - start) * rate)
    values = signals.readSignal(channel, round(start * rate), steps)
    return Stream(np.asarray(values, np.float32)[:, None], rate)
