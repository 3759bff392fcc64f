"""Wi-CaL: rows, rooms, days and numbers of people, made files and the real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Counting
from communis.data.sources.wical import Wical

from .made_wical import rows, write


def test_rows_land_in_their_environment(tmp_path: Path) -> None:
    top = tmp_path / "Wi-CaL"
    small, medium = rows(1), rows(2)
    write(top, "small-room", "sess2", "P=0.csv", small)
    write(top, "medium-room", "sess3", "P=10.csv", medium)
    data = Wical(folder=str(tmp_path), layout="features").open()
    assert data.task == Counting(11)
    assert data.labels == tuple(str(n) for n in range(11))
    first, second = data.recordings
    assert (first.target, first.subject, first.scene, first.session) == (10, 6, 2, 3)
    assert (second.target, second.subject, second.scene, second.session) == (0, 2, 1, 2)
    assert first.name == "Wi-CaL/datasets/medium-room/sess3/P=10.csv"
    np.testing.assert_array_equal(first.streams["csi"].values, medium)
    assert first.streams["csi"].rate == 1
    assert first.seconds == 199


def test_as_a_signal_a_row_is_one_second_of_420_steps(tmp_path: Path) -> None:
    values = rows(1)
    write(tmp_path, "small-room", "sess1", "P=5.csv", values)
    (recording,) = Wical(folder=str(tmp_path)).open().recordings
    stream = recording.streams["csi"]
    assert stream.rate == 420
    assert recording.seconds == 199
    np.testing.assert_array_equal(stream.values[420:840, 0], values[1])


@pytest.mark.parametrize(
    ("room", "session", "name", "wanted"),
    [
        ("large-room", "sess1", "P=1.csv", "unknown room 'large-room'"),
        ("small-room", "sess4", "P=1.csv", "unknown session 'sess4'"),
        ("small-room", "sess1", "P=11.csv", r"P=0\.csv to P=10\.csv"),
        ("small-room", "sess1", "P=x.csv", r"P=0\.csv to P=10\.csv"),
    ],
)
def test_unknown_places_are_named(
    tmp_path: Path, room: str, session: str, name: str, wanted: str
) -> None:
    path = write(tmp_path, room, session, name, rows(1))
    with pytest.raises(CommunisError, match=wanted) as error:
        list(Wical(folder=str(tmp_path)).open().recordings)
    assert str(path) in str(error.value)


def test_spoilt_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, "small-room", "sess1", "P=1.csv", rows(1))
    good = path.read_text("utf-8")

    def refused(text: str, wanted: str) -> None:
        path.write_text(text, "utf-8")
        with pytest.raises(CommunisError, match=wanted) as error:
            list(Wical(folder=str(tmp_path)).open().recordings)
        assert str(path) in str(error.value)

    refused(good[: len(good) - 900], "line 199: .* columns; expected 420")
    refused(good.replace(",", ";"), "line 1: .*separated by commas")
    lines = good.splitlines()
    lines[2] = "nan," + lines[2].partition(",")[2]
    refused("\n".join(lines), "line 3: NaN or infinity")
    refused("", "empty or was cut short")
    lines = good.splitlines()
    refused("\n".join(lines[:50] + lines[51:]), "198 rows, expected 199")
    refused("\n".join(lines[:50] + lines[49:]), "200 rows, expected 199")


def test_resampling_rows_is_refused() -> None:
    with pytest.raises(CommunisError, match=r"data\.rate must be 0"):
        Wical(rate=50)


def test_windows_of_a_signal_hold_whole_rows() -> None:
    for settings in ({"window": 1.5}, {"window": 2.0, "stride": 0.5}):
        with pytest.raises(
            CommunisError, match=r"data\.(window|stride) = .* mix parts of two rows"
        ):
            Wical(**settings)  # type: ignore[arg-type]
        Wical(**settings, layout="features")  # type: ignore[arg-type]
    Wical(window=3.0, stride=2.0)


@pytest.mark.slow
def test_real(real: Callable[[str], Path]) -> None:
    found = list(Wical(folder=str(real("wical")), layout="features").open().recordings)
    assert len(found) == 51
    people = {n: sorted(r.target for r in found if r.subject == n) for n in range(1, 7)}  # type: ignore[type-var]
    assert people == {n: list(range(6 if n < 4 else 11)) for n in range(1, 7)}
    assert {r.streams["csi"].values.shape for r in found} == {(199, 420)}
    values = np.stack([r.streams["csi"].values for r in found])
    assert np.isfinite(values).all()
    # Neighbouring rows share packets, which is why the split leaves out a row between its parts.
    scaled = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    near, far = ((scaled[:, :-n] * scaled[:, n:]).mean() for n in (1, 2))
    assert near > 0.6 > 0.5 > far
    assert Wical().gap >= 1
