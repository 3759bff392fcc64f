"""DSADS: 45 columns in their places, segments joined, and files that are not right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.sources.dsads import LABELS, Dsads

from .made_dsads import values, write

OFFICIAL = [
    f"{site}_{sensor}"
    for site in ("torso", "right_arm", "left_arm", "right_leg", "left_leg")
    for sensor in ("acc", "gyro", "mag")
]


def test_every_column_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, 19, 8, 1)
    found = Dsads(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert list(recording.streams) == OFFICIAL
    for k, modality in enumerate(OFFICIAL):
        stream = recording.streams[modality]
        assert stream.rate == 25
        assert stream.values.dtype == np.float32
        np.testing.assert_allclose(stream.values, values()[:, 3 * k : 3 * k + 3], rtol=1e-6)
        assert found.units[modality] == ("m/s2", "rad/s", "a.u.")[k % 3]
    assert recording.target == LABELS.index("playing basketball") == 18
    assert (recording.subject, recording.name) == (8, "DSADS/data/a19/p8/s01.txt")
    assert found.task.classes == len(found.labels) == 19


def test_segments_in_a_row_are_one_recording_and_a_gap_starts_another(tmp_path: Path) -> None:
    for activity, person, segment in (
        *((1, 1, s) for s in (10, 9, 2, 1, 3)),
        (1, 2, 4),  # follows 3, but is another person's
        (2, 2, 5),
    ):
        write(tmp_path, activity, person, segment)
    found = list(Dsads(folder=str(tmp_path / "DSADS")).open().recordings)
    assert [(r.target, r.subject, r.trial, r.seconds) for r in found] == [
        (0, 1, 1, 15.0),
        (0, 1, 9, 10.0),
        (0, 2, 4, 5.0),
        (1, 2, 5, 5.0),
    ]
    torso = found[1].streams["torso_acc"].values
    np.testing.assert_allclose(torso[:125], values(9)[:, :3], rtol=1e-6)
    np.testing.assert_allclose(torso[125:], values(10)[:, :3], rtol=1e-6)


def test_repeated_lines_are_filling_and_not_sensed(tmp_path: Path) -> None:
    rows = values()
    rows[100:] = rows[7]
    rows[50, :44] = rows[49, :44]  # one number differs: sensed
    write(tmp_path, 5, 1, 1, rows)
    [recording] = Dsads(folder=str(tmp_path)).open().recordings
    for stream in recording.streams.values():
        assert np.isnan(stream.values[100:]).all()
        assert np.isfinite(stream.values[:100]).all()


def test_sites(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 1)
    found = Dsads(folder=str(tmp_path), sites=("left_leg", "torso")).open()
    [recording] = found.recordings
    assert set(recording.streams) == set(found.units)
    assert list(found.units)[2:5] == ["torso_mag", "left_leg_acc", "left_leg_gyro"]
    np.testing.assert_allclose(
        recording.streams["left_leg_mag"].values, values()[:, 42:], rtol=1e-6
    )
    with pytest.raises(CommunisError, match=r"sites: no 'head'; there are torso"):
        Dsads(sites=("head",))


def test_sensors_of_all_sites_in_one_modality(tmp_path: Path) -> None:
    """Side by side in the owner's order of sites, whatever the order of the setting."""
    write(tmp_path, 1, 1, 1)
    for sites, first in (
        ((), (0, 9, 18, 27, 36)),
        (("right_leg", "torso", "right_arm"), (0, 9, 27)),
    ):
        found = Dsads(folder=str(tmp_path), sites=sites, group="sensor").open()
        [recording] = found.recordings
        assert dict(found.units) == {"acc": "m/s2", "gyro": "rad/s", "mag": "a.u."}
        for k, modality in enumerate(found.units):
            official = values()[:, [c + 3 * k + axis for c in first for axis in range(3)]]
            np.testing.assert_allclose(recording.streams[modality].values, official, rtol=1e-6)


def test_files_that_are_not_right_are_named(tmp_path: Path) -> None:
    def reading() -> None:
        list(Dsads(folder=str(tmp_path)).open().recordings)

    path = write(tmp_path, 1, 1, 1, values()[:100])
    with pytest.raises(CommunisError, match=r"s01\.txt: values of shape \(100, 45\)"):
        reading()
    write(tmp_path, 1, 1, 1, delimiter=";")
    with pytest.raises(CommunisError, match=r"s01\.txt, line 1: .*45 numbers separated by commas"):
        reading()
    write(tmp_path, 1, 1, 1, values()[:, :44])
    with pytest.raises(CommunisError, match=r"s01\.txt, line 1: 44 columns, expected 45"):
        reading()
    write(tmp_path, 1, 1, 1)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(CommunisError, match=r"s01\.txt, line 125: 4\d columns"):
        reading()
    path.write_text("")
    with pytest.raises(CommunisError, match=r"s01\.txt: holds no numbers"):
        reading()


def test_unknown_activities_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 20, 1, 1)
    with pytest.raises(CommunisError, match=r"a20.*expected aXX/pY/sZZ\.txt"):
        Dsads(folder=str(tmp_path)).open()


@pytest.mark.slow
def test_the_real_files(real: Callable[[str], Path]) -> None:
    found = list(Dsads(folder=str(real("dsads"))).open().recordings)
    assert len(found) == 19 * 8
    assert {r.seconds for r in found} == {50.0}
    for recording in found:
        nan = np.isnan(recording.streams["torso_acc"].values).mean()
        filled = recording.target in (4, 5) and recording.subject in (1, 6)
        assert nan == (pytest.approx(0.2) if filled else 0)  # the last of every 5 seconds
        if recording.target in (0, 1, 2, 3):
            for site in ("torso", "right_arm", "left_arm", "right_leg", "left_leg"):
                acc = recording.streams[f"{site}_acc"].values
                assert np.median(np.linalg.norm(acc, axis=1)) == pytest.approx(9.81, abs=0.15)
