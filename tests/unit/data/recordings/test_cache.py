"""Windows on disk: found again, told apart, rebuilt when incomplete."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.core.scratch import OWNER, Scratch
from communis.core.tasks import Classification
from communis.data.recordings.about import About
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(licence="none", files="*.npy")
reads: list[str] = []


@dataclass(frozen=True)
class Test_cache(Recorded):  # noqa: N801 - sources are named like their module
    __test__ = False
    scale: float = 1.0  # of the values

    def read(self, folder: Path) -> Dataset:
        def found() -> Iterator[Recording]:
            for path in self.files():
                reads.append(path.name)
                values = np.load(path) * self.scale
                yield Recording({"a": Stream(values, 10.0)}, 0, int(path.stem), name=path.name)

        return Dataset(found(), Classification(2), ("x", "y"), {"a": "g"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMMUNIS_DATA", str(tmp_path / "home"))
    place = tmp_path / "data"
    place.mkdir()
    for subject in (1, 2):
        np.save(place / f"{subject}.npy", np.arange(600.0).reshape(300, 2) + subject)
        os.utime(place / f"{subject}.npy", (1e9, 1e9))
    reads.clear()
    return place


def load(folder: Path, **settings: Any) -> Any:
    return Test_cache(folder=str(folder), **settings).load(Streams(0))


def folders() -> list[Path]:
    home = Path(os.environ["COMMUNIS_DATA"])
    return sorted(p for p in (home / "windows").iterdir() if p.name != "contents")


def test_the_second_time_nothing_is_read(folder: Path) -> None:
    first = load(folder)
    assert reads == ["1.npy", "2.npy"]
    second = load(folder)
    assert reads == ["1.npy", "2.npy"]
    assert np.array_equal(first.inputs["a"], second.inputs["a"])
    assert isinstance(second.inputs["a"], np.memmap)
    assert not second.inputs["a"].flags.writeable
    assert second.units == {"a": "g"}
    assert second.labels == ("x", "y")


def test_the_split_is_not_part_of_the_key(folder: Path) -> None:
    load(folder)
    load(folder, split="subject", gap=0.5)
    assert len(reads) == 2
    assert len(folders()) == 1


@pytest.mark.parametrize(
    "settings", [{"window": 1.0}, {"stride": 1.0}, {"rate": 5.0}, {"scale": 2}]
)
def test_other_settings_make_other_windows(folder: Path, settings: dict[str, Any]) -> None:
    before = load(folder).inputs["a"]
    after = load(folder, **settings).inputs["a"]
    assert len(reads) == 4
    assert before.shape != after.shape or not np.array_equal(before, after)


def test_changed_content_is_noticed_and_a_mere_touch_is_not(folder: Path) -> None:
    load(folder)
    os.utime(folder / "1.npy", (2e9 - 1e9 + 5, 1e9 + 5))
    load(folder)
    assert len(reads) == 2
    np.save(folder / "1.npy", np.arange(600.0).reshape(300, 2) - 5)
    assert load(folder).inputs["a"][0, 0, 0] == -5
    assert len(reads) == 4


def test_a_copy_elsewhere_shares_the_windows(folder: Path, tmp_path: Path) -> None:
    load(folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    load(copy)
    assert len(folders()) == 1
    assert len(reads) == 2


@pytest.mark.parametrize("harm", ["cut", "gone", "zeros", "no meta", "bad meta", "odd meta"])
def test_half_written_windows_are_made_again(
    folder: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = np.array(load(folder).inputs["a"])
    place = folders()[0]
    if harm == "cut":
        whole = (place / "a.bin").read_bytes()
        (place / "a.bin").unlink()  # the old map keeps the old file
        (place / "a.bin").write_bytes(whole[: len(whole) // 2])
    elif harm == "gone":
        (place / "owner.npy").unlink()
    elif harm == "zeros":  # what a power cut may leave
        size = (place / "target.npy").stat().st_size
        (place / "target.npy").write_bytes(bytes(size))
    elif harm == "odd meta":
        (place / "meta.json").write_text('{"sizes": {}, "shapes": {}, "count": 0, "kinds": {}}')
    elif harm == "no meta":
        (place / "meta.json").unlink()
    else:
        (place / "meta.json").write_text('{"count": 3')
    with caplog.at_level(logging.WARNING, "communis"):
        assert np.array_equal(load(folder).inputs["a"], expected)
    assert "written again" in caplog.text
    assert len(reads) == 4


def test_a_reader_that_fails_leaves_nothing_behind(folder: Path) -> None:
    (folder / "2.npy").write_bytes(b"nonsense")
    with pytest.raises(CommunisError, match=r"after 1\.npy: not a readable .*pickle"):
        load(folder)
    assert folders() == []


def test_a_folder_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMUNIS_DATA", "/dev/null/nowhere")
    with pytest.raises(CommunisError, match=r"cannot be written there.*COMMUNIS_DATA"):
        load(folder)


def test_another_process_may_be_faster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.array(load(folder).inputs["a"])
    place = folders()[0]
    elsewhere = place.with_name("elsewhere")
    place.rename(elsewhere)
    real = Path.rename

    def late(self: Path, target: Path) -> Path:
        if not place.exists():
            real(elsewhere, place)  # the other one finishes just before we do
        return real(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert np.array_equal(load(folder).inputs["a"], expected)
    assert folders() == [place]


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_what_killed_runs_left_is_removed(folder: Path) -> None:
    load(folder)
    home = folders()[0].parent
    dead = home / "communis-dead"
    dead.mkdir()
    (dead / OWNER).touch()  # its lock is free: the system released it
    with Scratch(home) as alive:
        load(folder, window=1.0)
        assert alive.exists()
    assert not dead.exists()


def test_missing_files_say_how_to_get_them(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"no such folder.*communis data fetch test_cache"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommunisError, match=r"no file matches \*\.npy"):
        load(tmp_path / "empty")
