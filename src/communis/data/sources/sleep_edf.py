"""Sleep-EDF: nights of 78 people at home: EEG, EOG, EMG, breath, temperature and sleep stages.

Sleep-EDF Database Expanded 1.0.0 (Kemp et al. 2000), PhysioNet. A night is a pair of EDF files,
`sleep-cassette/SC4ssNE0-PSG.edf` and `SC4ssNEs-Hypnogram.edf`: ss is the subject, N the night, s
the scorer, so the two names differ in one letter, which is not the same in every pair.

Data records of the polysomnograms last 30 s and every signal has its own number of samples per
record; its rate is that number divided by the duration of a record. In the cassette study the EMG
is an envelope of 1 Hz, in the telemetry study a signal of 100 Hz. Hypnograms are EDF+ annotations
that begin at the same second as the signals and may continue after their end. The cassette recorded
for about 20 hours: of the waking before and after sleep, only `wake_minutes` are read.
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

# Subjects 0-19, called "Sleep-EDF-20" in papers: subject and night, then the scorer's letter.
FIRST_TWENTY = """
001C 002C 011H 012C 021H 022J 031C 032P 041C 042C 051C 052C 061C 062C 071C 072H 081C 082P 091C 092C
101C 102C 111C 112C 121C 122V 131C 141U 142U 151C 152C 161C 162C 171U 172C 181C 182C 191P 192V
"""


def _downloads() -> tuple[Download, ...]:
    """Returns the downloads of the first twenty subjects, two files for each night."""
    folder = "https://physionet.org/files/sleep-edfx/1.0.0/sleep-cassette"
    downloads = []
    for night in FIRST_TWENTY.split():
        number = night[:3]
        scorer = night[3]
        downloads.append(Download(f"{folder}/SC4{number}E0-PSG.edf"))
        downloads.append(Download(f"{folder}/SC4{number}E{scorer}-Hypnogram.edf"))
    return tuple(downloads)


ABOUT = About(
    licence="ODC-By 1.0",
    citation="Kemp et al. 2000, doi:10.1109/10.867928; Goldberger et al. 2000 (PhysioNet); "
    "doi:10.13026/C2X676",
    address="https://physionet.org/content/sleep-edfx/1.0.0/",
    files="sleep-*/S[CT][0-9]*.edf",
    count=394,  # 153 nights of the cassette and 44 of the telemetry study, two files each
    downloads=_downloads(),
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
EPOCH = 30  # seconds of one score
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

    window: float = 30.0  # length of a window in seconds; 30: one window per score
    # unit that is never in training and test at once; session: nights; with time, the neighbours of
    # a test epoch may train, because stages alternate
    split: SplitKind = "session"
    # cassette: healthy people at home; telemetry: people in hospital, in a study of temazepam
    study: Study = "cassette"
    # signals to read; empty: all; cassette: eeg_fpz_cz, eeg_pz_oz, eog, emg, resp, temp;
    # telemetry: the first four of them
    modalities: tuple[str, ...] = ()
    wake_minutes: float = 30.0  # minutes of waking to read before and after sleep; negative: all
    subjects: tuple[int, ...] = ()  # numbers of the subjects in the file names; empty: all

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
        """Returns subject and night from the name of the file."""
        match = NAMES[self.study].fullmatch(path.name)
        if not match:
            raise CommunisError(
                f"{path}: the name does not match {NAMES[self.study].pattern}, so subject and "
                "night are unknown"
            )
        return int(match[1]), int(match[2])

    def _night(self, edf: Any, path: Path, wanted: tuple[str, ...], name: str) -> Recording:
        subject, night = self._named(path)
        scores = _companion(path)
        with _opened(edf, path) as signals, _opened(edf, scores) as annotations:
            if signals.getStartdatetime() != annotations.getStartdatetime():
                raise CommunisError(
                    f"{scores}: begins at {annotations.getStartdatetime()}, but {path.name} at "
                    f"{signals.getStartdatetime()}: they are not of the same night"
                )
            seconds = signals.datarecords_in_file * signals.datarecord_duration
            room(path, 8 * seconds / EPOCH, f"a night of {seconds:g} s")
            stages = _stages(annotations, scores, int(seconds // EPOCH))
            start, stop = _asleep(stages, self.wake_minutes)
            streams = {}
            for m in wanted:
                streams[m] = _stream(signals, path, SIGNALS[m], start * EPOCH, stop * EPOCH)
        return Recording(
            streams,
            Stream(stages[start:stop], 1 / EPOCH),
            subject=subject,
            session=night,
            name=name,
        )


def _only(units: dict[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
    return {m: unit for m, unit in units.items() if m in wanted}


def _companion(path: Path) -> Path:
    """Returns the hypnogram of a polysomnogram; any letter may name the scorer."""
    pattern = path.name.replace("0-PSG.edf", "?-Hypnogram.edf")
    hypnograms = sorted(path.parent.glob(pattern))
    if len(hypnograms) != 1:
        listed = ", ".join(p.name for p in hypnograms) or "none"
        raise CommunisError(
            f"{path}: expected one hypnogram {pattern} beside it (? is the scorer's letter), "
            f"found {listed}"
        )
    return hypnograms[0]


def _opened(edf: Any, path: Path) -> Any:
    with reading(path, "EDF file"):
        _check_size(path)
        return closing(edf.EdfReader(str(path)))


def _check_size(path: Path) -> None:
    """Raises an error if the length of the file differs from its header, before memory is
    allocated. The library checks this, too, but prints the result."""
    with path.open("rb") as file:
        head = file.read(256)
        signals = int(head[252:256])
        records = int(head[236:244])
        signal_headers = file.read(256 * max(0, signals))
    samples = []  # number of samples of each signal in a record
    for signal in range(signals):
        begin = 216 * signals + 8 * signal
        samples.append(int(signal_headers[begin : begin + 8]))
    expected = 256 * (1 + signals) + 2 * records * sum(samples)
    actual = path.stat().st_size
    if actual != expected or min(records, signals, *samples) < 1:
        raise CommunisError(
            f"{path}: holds {actual} bytes, but its header announces {expected}: {records} records "
            f"of {signals} signals; it may have been cut short: get it again"
        )
    room(path, 8 * actual, "its signals")


def _stages(annotations: Any, path: Path, epochs: int) -> Array:
    """Returns the class of every epoch of the signals; scores after their end are left out."""
    stages = np.full(epochs, UNLABELLED, np.int64)
    with reading(path, "EDF file"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a text that is not readable is refused below
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
    """Returns the first epoch to keep, and the epoch after the last one to keep."""
    sleep = np.flatnonzero(stages > 0)
    if wake_minutes < 0 or len(sleep) == 0:
        return 0, len(stages)
    margin = int(wake_minutes * 60 // EPOCH)
    start = max(0, int(sleep[0]) - margin)
    stop = min(len(stages), int(sleep[-1]) + 1 + margin)
    return start, stop


def _stream(signals: Any, path: Path, label: str, start: int, end: int) -> Stream:
    """Returns one signal from second `start` to second `end`."""
    labels = [text.strip() for text in signals.getSignalLabels()]
    if labels.count(label) != 1:
        raise CommunisError(f"{path}: expected one signal {label}, found {', '.join(labels)}")
    channel = labels.index(label)
    rate = signals.samples_in_datarecord(channel) / signals.datarecord_duration
    steps = round((end - start) * rate)
    values = signals.readSignal(channel, round(start * rate), steps)
    return Stream(np.asarray(values, np.float32)[:, None], rate)
