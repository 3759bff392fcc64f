"""Stress-Predict: five sensors at four rates, and which task took place when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.recording import Recording, Stream
from communis.data.sources.stress_predict import StressPredict, _next

from .made_stress_predict import BEGIN, log, person, tags, times

MORNING = times(("9:29", "9:31"), ("9:32", "9:34"), ("9:35", "9:36"))
PRESSED = [65, 170, 250, 365, 415, 500]  # seconds after the start, near the logged minutes


def made(folder: Path, pressed: list[int], row: dict[str, float] = MORNING) -> Path:
    home = person(folder, "S07")
    tags(folder, "S07", [BEGIN + n for n in pressed])
    log(folder, {"S06": MORNING, "S07": row})
    return home


def read(folder: Path, target: str = "task") -> list[Recording]:
    return list(StressPredict(folder=str(folder), target=target).open().recordings)  # type: ignore[arg-type]


def changes(recording: Recording) -> list[tuple[int, int]]:
    assert isinstance(recording.target, Stream)
    assert recording.target.rate == 1
    classes = recording.target.values
    return [(int(n), int(classes[n])) for n in np.flatnonzero(np.diff(classes, prepend=0))]


def test_every_file_becomes_its_modality(tmp_path: Path) -> None:
    made(tmp_path / "Stress-Predict", PRESSED)
    data = StressPredict(folder=str(tmp_path)).open()
    assert data.task == Classification(2)
    assert data.labels == ("rest", "stress")
    (recording,) = data.recordings
    assert (recording.subject, recording.name) == (7, "Stress-Predict/Raw_data/S07")
    found = {m: (s.rate, s.start, s.values.shape) for m, s in recording.streams.items()}
    assert found == {
        "acc": (32, 0, (19200, 3)),
        "bvp": (64, 0, (38400, 1)),
        "eda": (4, 0, (2400, 1)),
        "temperature": (4, 0, (2400, 1)),
        "heart": (1, 10, (590, 1)),
    }
    np.testing.assert_allclose(recording.streams["acc"].values[0], [-1, 0.5, 1])
    assert data.units["acc"] == "g"
    firsts = [
        float(recording.streams[m].values[7, 0]) for m in ("bvp", "eda", "temperature", "heart")
    ]
    assert firsts == [1007, 2007, 3007, 4007]


def test_tags_give_the_second_and_the_log_the_name(tmp_path: Path) -> None:
    made(tmp_path, PRESSED)
    (recording,) = read(tmp_path)
    wanted = [(65, 1), (170, 0), (250, 2), (365, 0), (415, 3), (500, 0)]
    assert changes(recording) == wanted
    (recording,) = read(tmp_path, "stress")
    assert changes(recording) == [(n, min(c, 1)) for n, c in wanted]


def test_tags_of_other_moments_are_passed_over(tmp_path: Path) -> None:
    made(tmp_path, [65, 170, 205, 250, 365, 415, 500, 560])  # the end of a rest, and another
    assert changes(read(tmp_path)[0])[2:4] == [(250, 2), (365, 0)]


def test_a_button_that_was_pressed_very_often(tmp_path: Path) -> None:
    """All ways to choose six of 120 tags could not be tried."""
    made(tmp_path, list(range(3, 603, 5)))
    wanted = [(58, 1), (178, 0), (238, 2), (358, 0), (418, 3), (478, 0)]
    assert changes(read(tmp_path)[0]) == wanted


@pytest.mark.parametrize("pressed", [[], PRESSED[1:], [65, 170, 250, 365, 415, 601]])
def test_without_fitting_tags_the_log_counts(tmp_path: Path, pressed: list[int]) -> None:
    made(tmp_path, pressed)
    wanted = [(60, 1), (180, 0), (240, 2), (360, 0), (420, 3), (480, 0)]
    assert changes(read(tmp_path)[0]) == wanted


def test_the_log_has_a_clock_of_twelve_hours(tmp_path: Path) -> None:
    person(tmp_path, "S08", BEGIN + 3.5 * 3600)  # 12:58
    tags(tmp_path, "S08", [])
    log(tmp_path, {"S08": times(("12:59", "1:00"), ("1:01", "1:02"), ("1:03", "1:04"))})
    wanted = [(60, 1), (120, 0), (180, 2), (240, 0), (300, 3), (360, 0)]
    assert changes(read(tmp_path)[0]) == wanted


def test_bad_files_are_named(tmp_path: Path) -> None:
    home = made(tmp_path, PRESSED)
    book = tmp_path / "Processed_data" / "Time_logs.xlsx"

    def refused(path: Path, text: str | None, wanted: str) -> None:
        kept = path.read_bytes()
        if text is None:
            path.unlink()
        else:
            path.write_text(text, "utf-8")
        with pytest.raises(CommunisError, match=wanted) as error:
            read(tmp_path)
        assert str(path) in str(error.value)
        path.write_bytes(kept)

    refused(home / "EDA.csv", None, "No such file")
    refused(home / "EDA.csv", "", "lines 1 and 2 must be the start")
    refused(home / "EDA.csv", "12\n4\n1\n", "start 12 and rate 4")
    refused(home / "EDA.csv", f"{BEGIN}\n4\n", "empty or was cut short")
    refused(home / "EDA.csv", f"{BEGIN}\n4\n1\nx\n", "line 4: 'x' is not a number")
    refused(home / "ACC.csv", f"{BEGIN}\n32\n1,2,3\n1,2\n", "line 4: 2 columns; expected 3")
    refused(home / "ACC.csv", f"{BEGIN}\n32\n1;2;3\n", "line 3: .*commas")
    refused(home / "tags_S07.csv", None, "No such file")
    refused(home / "tags_S07.csv", "soon\n", "one Unix time per line")
    refused(book, None, "cannot be read")
    refused(book, "not a workbook", "not a readable workbook")


def test_a_log_that_does_not_fit_is_named(tmp_path: Path) -> None:
    made(tmp_path, PRESSED, {name: MORNING[name] for name in "IJMNQZ"})
    with pytest.raises(CommunisError, match=r"xlsx: row S07: a date or time is missing"):
        read(tmp_path)
    log(tmp_path, {"S07": times(("9:31", "9:29"), ("9:32", "9:34"), ("9:35", "9:36"))})
    with pytest.raises(CommunisError, match=r"xlsx: row S07: times do not follow each other"):
        read(tmp_path)
    log(tmp_path, {"S06": MORNING})
    with pytest.raises(CommunisError, match=r"xlsx: no row S07"):
        read(tmp_path)


def test_real(real: Callable[[str], Path]) -> None:
    found = read(real("stress_predict"))
    assert [r.subject for r in found] == list(range(1, 16))
    for recording in found:
        assert [c for _, c in changes(recording)] == [1, 0, 2, 0, 3, 0]
        force = np.linalg.norm(recording.streams["acc"].values, axis=1)
        assert 0.98 < np.median(force) < 1.03
        assert {m: s.rate for m, s in recording.streams.items()} == {
            "acc": 32, "bvp": 64, "eda": 4, "temperature": 4, "heart": 1
        }  # fmt: skip
        assert all(np.isfinite(s.values).all() for s in recording.streams.values())
        assert 25 < recording.streams["temperature"].values.mean() < 36
        assert 50 < recording.streams["heart"].values.mean() < 120
    # The owner's own labels of S05 (by tags) and S06 (by the log), which change at these seconds.
    assert [n for n, _ in changes(found[4])][:3] == [674, 1020, 1291]
    assert [n for n, _ in changes(found[5])][:3] == [600, 960, 1320]


@pytest.mark.parametrize(
    ("column", "right"), [("A", "B"), ("Z", "AA"), ("AZ", "BA"), ("ZZ", "AAA")]
)
def test_the_column_to_the_right(column: str, right: str) -> None:
    assert _next(column) == right
