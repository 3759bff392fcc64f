"""RealWorld (HAR): archives in archives, parts, uneven clocks, and files that are not right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import Recording
from communis.data.sources.realworld import LABELS, Realworld

from .made_realworld import SITES, archive, table, tables, value, whole, write

STEADY = [20 * n for n in range(10)]


def only(source: Realworld) -> Recording:
    [recording] = source.open().recordings
    return recording


def chest(folder: Path, times: list[int], **settings: float) -> np.ndarray:
    """The chest's accelerometer, x, after reading one table with these times."""
    files = {"acc_walking_chest.csv": table("acc", "chest", times)}
    write(folder, 1, "acc_walking_csv.zip", archive(files))
    source = Realworld(folder=str(folder), **settings)  # type: ignore[arg-type]
    return only(source).streams["chest_acc"].values[:, 0]


def test_every_table_lands_in_its_place(tmp_path: Path) -> None:
    whole(tmp_path, 12, "jumping", STEADY)
    found = Realworld(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert len(recording.streams) == len(found.units) == 21
    for archive_name, sensor in (("acc", "acc"), ("gyr", "gyro"), ("mag", "mag")):
        for site in SITES:
            stream = recording.streams[f"{site}_{sensor}"]
            assert (stream.rate, stream.start, stream.values.shape) == (50, 0, (10, 3))
            for row in (0, 9):
                expected = [value(archive_name, site, axis, row) for axis in "xyz"]
                assert stream.values[row] == pytest.approx(expected, abs=1e-3)
    assert found.units["shin_acc"] == "m/s2"
    assert found.units["head_gyro"] == "rad/s"
    assert found.units["waist_mag"] == "uT"
    assert recording.target == LABELS.index("jumping") == 2
    assert (recording.subject, recording.trial) == (12, 1)
    assert recording.name == "realworld2016_dataset/proband12/data/jumping_1"


def test_ten_modalities_of_fedduet(tmp_path: Path) -> None:
    whole(tmp_path, 1, "lying", STEADY)
    sites = ("chest", "head", "shin", "upperarm", "waist")
    found = only(Realworld(folder=str(tmp_path), sites=sites, sensors=("acc", "gyro")))
    assert set(found.streams) == {f"{s}_{k}" for s in sites for k in ("acc", "gyro")}


def test_subjects_and_activities_in_order(tmp_path: Path) -> None:
    for subject, activity in ((10, "walking"), (2, "walking"), (2, "climbingdown")):
        whole(tmp_path, subject, activity, STEADY)
    found = Realworld(folder=str(tmp_path / "realworld2016_dataset")).open().recordings
    assert [(r.subject, r.target) for r in found] == [(2, 0), (2, 7), (10, 7)]


def test_parts_by_the_name_of_the_table(tmp_path: Path) -> None:
    files = {**tables("acc", "sitting", STEADY), **tables("acc", "sitting_2", STEADY[:4])}
    write(tmp_path, 6, "acc_sitting_csv.zip", archive(files))
    first, second = Realworld(folder=str(tmp_path)).open().recordings
    assert (first.trial, second.trial) == (1, 2)
    assert len(first.streams["head_acc"].values) == 10
    assert len(second.streams["head_acc"].values) == 4
    assert first.target == second.target == LABELS.index("sitting")


def nested(folder: Path, numbered: bool) -> None:
    """As for subjects 4, 7 and 14: the first gyroscope archive has no number, the first
    accelerometer archive has one."""
    for sensor, first in (("acc", "_1"), ("gyr", "")):
        files = {}
        for part, length in ((1, 5), (2, 6), (3, 7)):
            number = first if part == 1 else f"_{part}"
            name = f"climbingup_{part}" if numbered and part > 1 else "climbingup"
            inner = tables(sensor, name, STEADY[:length])
            files[f"{sensor}_climbingup{number}_csv.zip"] = archive(inner)
        write(folder, 4, f"{sensor}_climbingup_csv.zip", archive(files))


@pytest.mark.parametrize("numbered", [True, False])
def test_archives_in_an_archive_are_parts(tmp_path: Path, numbered: bool) -> None:
    nested(tmp_path, numbered)
    found = list(Realworld(folder=str(tmp_path)).open().recordings)
    assert [r.trial for r in found] == [1, 2, 3]
    assert [len(r.streams["waist_gyro"].values) for r in found] == [5, 6, 7]
    assert [len(r.streams["waist_acc"].values) for r in found] == [5, 6, 7]
    assert {r.target for r in found} == {LABELS.index("climbingup")}


def test_unpacked_tables_with_or_without_a_folder(tmp_path: Path) -> None:
    for name, content in tables("gyr", "walking", STEADY, ("chest",)).items():
        write(tmp_path, 3, f"gyr_walking_csv/{name}", content)
    for name, content in tables("acc", "walking", STEADY, ("waist",)).items():
        write(tmp_path, 3, name, content)
    assert set(only(Realworld(folder=str(tmp_path))).streams) == {"chest_gyro", "waist_acc"}


def test_unpacked_parts_by_the_name_of_their_folder(tmp_path: Path) -> None:
    for folder in ("gyr_climbingup_csv", "gyr_climbingup_2_csv"):
        for name, content in tables("gyr", "climbingup", STEADY, ("chest",)).items():
            write(tmp_path, 3, f"{folder}/{name}", content)
    assert [r.trial for r in Realworld(folder=str(tmp_path)).open().recordings] == [1, 2]


def test_what_is_unpacked_beside_its_archive_counts_once(tmp_path: Path) -> None:
    whole(tmp_path, 3, "walking", STEADY)
    write(tmp_path, 3, "acc_walking_chest.csv", table("acc", "chest", STEADY[:3]))
    streams = only(Realworld(folder=str(tmp_path))).streams
    assert len(streams) == 21
    assert len(streams["chest_acc"].values) == 3


def test_positions_that_failed_are_absent(tmp_path: Path) -> None:
    files = tables("acc", "climbingup", STEADY, tuple(s for s in SITES if s != "forearm"))
    files["acc_climbingup_thigh.csv"] = b"id,attr_time,attr_x,attr_y,attr_z\n"
    write(tmp_path, 2, "acc_climbingup_csv.zip", archive(files))
    streams = only(Realworld(folder=str(tmp_path))).streams
    assert {m.removesuffix("_acc") for m in streams} == set(SITES) - {"forearm", "thigh"}


def test_streams_keep_their_common_time(tmp_path: Path) -> None:
    files = {
        "acc_walking_chest.csv": table("acc", "chest", STEADY),
        "acc_walking_head.csv": table("acc", "head", [t + 130 for t in STEADY]),
    }
    write(tmp_path, 1, "acc_walking_csv.zip", archive(files))
    streams = only(Realworld(folder=str(tmp_path))).streams
    head = streams["head_acc"]
    assert (streams["chest_acc"].start, head.start) == (0, 0.12)
    # The grid's steps at 140, 160, ... ms lie in the middle between two samples of the head.
    halves = [value("acc", "head", "x", n) + 0.005 for n in range(9)]
    assert head.values[1:, 0] == pytest.approx(halves, abs=1e-4)


def test_uneven_samples_are_interpolated_and_gaps_are_not(tmp_path: Path) -> None:
    times = [0, 30, 40, 60, 400, 420]
    found = chest(tmp_path, times)
    assert len(found) == 22
    assert found[1] == pytest.approx(value("acc", "chest", "x", 0) + 2 / 3 * 0.01, abs=1e-5)
    assert np.flatnonzero(np.isnan(found)).tolist() == list(range(4, 20))
    assert np.isfinite(chest(tmp_path, times, longest_gap=0.5)).all()


def test_samples_out_of_order_are_sorted(tmp_path: Path) -> None:
    found = chest(tmp_path, [0, 40, 20, 60])
    expected = [value("acc", "chest", "x", row) for row in (0, 2, 1, 3)]
    assert found == pytest.approx(expected, abs=1e-5)


def refused(folder: Path, **settings: object) -> str:
    with pytest.raises(CommunisError) as error:
        list(Realworld(folder=str(folder), **settings).open().recordings)  # type: ignore[arg-type]
    return str(error.value)


def test_corrupt_archives_are_named(tmp_path: Path) -> None:
    good = archive(tables("acc", "walking", STEADY))
    path = write(tmp_path, 1, "acc_walking_csv.zip", good[: len(good) // 2])
    assert f"{path}: not a readable archive" in refused(tmp_path)
    broken = bytearray(good)
    broken[100:110] = bytes(10)
    path.write_bytes(bytes(broken))
    assert f"{path} > acc_walking_chest.csv: not a readable file of" in refused(tmp_path)
    path.write_bytes(archive({"acc_walking_1_csv.zip": good[:200]}))
    assert f"{path} > acc_walking_1_csv.zip: not a readable archive" in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "No columns"),
        (b"1,2,3,4,5\n1,2,3,4,5\n", "line 1: columns 1, 2, 3, 4, 5, expected id, attr_time"),
        (b"id,attr_time,attr_x,attr_y\n1,5,1,2\n", "line 1: columns id, attr_time, attr_x, attr_y"),
        (b"id;attr_time;attr_x;attr_y;attr_z\n1;5;1;2;3\n", "line 1: columns id;attr_time"),
        (b"id,attr_time,attr_x,attr_y,attr_z\n1,5,1,2,3\n2,6,1\n", "line 3: 2.0,6.0,1.0,nan,nan"),
        (b"id,attr_time,attr_x,attr_y,attr_z\n1,5,1,2,3\n2,6,1,x,3\n", "line 3: 2,6,1,x,3"),
        (b"id,attr_time,attr_x,attr_y,attr_z\n1,5,1,2,3\n2,6,1,2,3,4\n", "in line 3, saw 6"),
        (b"id,attr_time,attr_x,attr_y,attr_z\n1,5,1,2,3,4\n", "line 1: columns"),
        (b"id,attr_time,attr_x,attr_y,attr_z\n1,5,1,2,3\n", "at least two, in ascending order"),
        (b"\xff\xfe\x80", "utf-8"),
    ],
)
def test_bad_tables_are_named_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, 1, "acc_walking_csv.zip", archive({"acc_walking_chest.csv": content}))
    found = refused(tmp_path)
    assert f"{path} > acc_walking_chest.csv" in found
    assert message in found


def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    files = {
        "acc_walking_chest.csv": table("acc", "chest", STEADY),
        "acc_walking_head.csv": table("acc", "head", [t + 10**11 for t in STEADY]),
    }
    path = write(tmp_path, 1, "acc_walking_csv.zip", archive(files))
    found = refused(tmp_path)
    assert f"{path} > acc_walking_head.csv: its last sample is" in found
    assert len(only(Realworld(folder=str(tmp_path), sites=("chest",))).streams) == 1


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, 1, "acc_walking_csv.zip", archive({"acc_strolling_chest.csv": b""}))
    assert f"{path} > acc_strolling_chest.csv: expected a name such as" in refused(tmp_path)
    path.unlink()
    whole(tmp_path, 16, "walking", STEADY)
    assert "expected proband1 to proband15" in refused(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sites": ("wrist",)}, "sites: no 'wrist'; there are chest, forearm"),
        ({"sensors": ("gyr",)}, "sensors: no 'gyr'; there are acc, gyro, mag"),
        ({"longest_gap": 0.0}, "longest_gap must be positive"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Realworld(**settings)  # type: ignore[arg-type]


def test_times_are_not_rounded(tmp_path: Path) -> None:
    """Milliseconds since 1970 do not fit into a float of 32 bits: it steps by 131072 of them."""
    times = [0, 21, 39, 62, 80]
    expected = [value("acc", "chest", "x", row) for row in (0, 1, 2, 3, 4)]
    found = chest(tmp_path, times)
    assert found == pytest.approx(expected, abs=2e-3)
