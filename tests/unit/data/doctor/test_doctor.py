"""The doctor finds what is wrong with data made sick on purpose, and finds nothing in healthy
data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.doctor import Clients, Finding, examine, sets
from communis.data.recordings.about import About
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded
from communis.data.recordings.windows import Windows
from communis.data.sources.synthetic import Synthetic

ABOUT = About(licence="none", files="*.txt", count=1)
RATE = 50.0
Change = Callable[[Recording], Recording]


def healthy(subject: int, seconds: int = 60) -> Recording:
    """A person who sits still for half of the time: gravity, sensor noise, and some movement."""
    rng = np.random.default_rng(subject)
    steps = int(seconds * RATE)
    direction = rng.standard_normal(3)
    moving = (np.arange(steps) % steps >= steps // 2)[:, None]
    acc = direction / np.linalg.norm(direction) + rng.standard_normal((steps, 3)) * np.where(
        moving, 0.3, 0.005
    )
    gyro = rng.standard_normal((steps, 3)) * np.where(moving, 60.0, 1.0)
    labels = np.where(np.arange(steps) < steps // 2, 0, 1)
    streams = {"acc": Stream(acc.astype(np.float32), RATE), "gyro": Stream(gyro, RATE)}
    return Recording(streams, Stream(labels, RATE), subject, name=f"{subject}.txt")


def changed(recording: Recording, **streams: Any) -> Recording:
    made = {m: Stream(np.asarray(v, np.float32), RATE) for m, v in streams.items()}
    return Recording(
        {**recording.streams, **made}, recording.target, recording.subject, name=recording.name
    )


@dataclass(frozen=True)
class Patient(Recorded):
    people: tuple[Recording, ...] = ()
    units: dict[str, str] = field(default_factory=lambda: {"acc": "g", "gyro": "deg/s"})

    def read(self, folder: Path) -> Dataset:
        def found() -> Iterator[Recording]:
            for one in self.people:
                if one.subject < 0:
                    raise CommunisError(f"{one.name}, line 7: 5 columns, expected 6")
                yield one

        return Dataset(found(), Classification(2), ("still", "moving"), self.units)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Finding]]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").touch()
    count = iter(range(100))

    def asked(*people: Recording, **settings: Any) -> list[Finding]:
        # A file of its own for each question: the same bytes would be answered from the cache.
        (tmp_path / "data" / "x.txt").write_text(f"{tmp_path} {next(count)}")
        found = people or tuple(healthy(i) for i in range(4))
        source = Patient(folder=str(tmp_path / "data"), people=found, **settings)
        return list(examine(source))

    return asked


def worst(findings: list[Finding], about: str) -> Finding:
    order = ("error", "warning", "note", "ok")
    return min((f for f in findings if f.about == about), key=lambda f: order.index(f.level))


def test_healthy_data_have_no_errors_and_no_warnings(ask: Callable[..., list[Finding]]) -> None:
    findings = ask()
    assert [f for f in findings if f.level in ("error", "warning")] == []
    gravity = next(f for f in findings if f.about == "acc" and "rest" in f.text)
    assert gravity.text.startswith("1.00 g at rest")
    assert worst(findings, "subjects").level == "note"


@pytest.mark.parametrize(
    ("factor", "unit", "fix"),
    [
        (9.81, "g", "is the unit m/s2?"),
        (1.0, "m/s2", "is the unit g?"),
        (1000.0, "g", "is the unit mg? divide by 1000"),
        (0.02, "g", "gravity was removed"),
        (3.0, "g", "check unit and columns"),
    ],
)
def test_a_wrong_unit_is_seen_by_gravity(
    ask: Callable[..., list[Finding]], factor: float, unit: str, fix: str
) -> None:
    people = [
        changed(one, acc=factor * one.streams["acc"].values) for one in map(healthy, range(4))
    ]
    found = [f for f in ask(*people, units={"acc": unit, "gyro": "deg/s"}) if f.about == "acc"]
    error = next(f for f in found if "expected 1 g" in f.text)
    assert error.level == "error"
    assert fix in error.fix


def test_a_gyroscope_in_place_of_the_accelerometer_is_seen(
    ask: Callable[..., list[Finding]],
) -> None:
    people = [
        changed(one, acc=one.streams["gyro"].values, gyro=one.streams["acc"].values)
        for one in map(healthy, range(4))
    ]
    assert worst(ask(*people), "acc").level == "error"


def test_a_little_out_of_calibration_is_a_warning(ask: Callable[..., list[Finding]]) -> None:
    people = [changed(one, acc=1.15 * one.streams["acc"].values) for one in map(healthy, range(4))]
    assert worst(ask(*people), "acc").level == "warning"


def test_values_nobody_can_produce(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    gyro = np.array(one.streams["gyro"].values)
    gyro[5] = 90_000
    found = worst(ask(changed(one, gyro=gyro), healthy(1)), "gyro")
    assert (found.level, "glitches" in found.fix) == ("warning", True)
    found = worst(ask(changed(one, gyro=gyro * 100), healthy(1)), "gyro")
    assert found.level == "error"
    assert "check unit and columns" in found.fix


def test_rotation_in_another_unit(ask: Callable[..., list[Finding]]) -> None:
    people = [healthy(i) for i in range(3)]
    slow = [changed(p, gyro=np.radians(p.streams["gyro"].values)) for p in people]
    assert worst(ask(*slow), "gyro").fix == "is the unit rad/s?"
    found = worst(ask(*people, units={"acc": "g", "gyro": "rad/s"}), "gyro")
    assert (found.level, found.fix) == ("error", "is the unit deg/s?")


def test_one_person_in_another_unit_is_named(ask: Callable[..., list[Finding]]) -> None:
    people = [healthy(i) for i in range(6)]
    people[3] = changed(people[3], acc=9.81 * people[3].streams["acc"].values)
    errors = [f for f in ask(*people) if f.level == "error"]
    assert [f.text.split(" at rest")[0] for f in errors] == ["subject 3: 9.81 g"]
    assert errors[0].fix == "is the unit m/s2?"


def test_a_range_set_late_is_named_by_its_recording(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    acc = np.array(one.streams["acc"].values)
    acc[:1000] *= 0.25  # 20 of 30 s at rest
    others = [Recording(healthy(i).streams, 0, 0, name=f"{i}.txt") for i in (1, 2, 3)]
    found = [f for f in ask(changed(one, acc=acc), *others) if "in 1 of 4 recordings" in f.text]
    assert [f.level for f in found] == ["warning"]
    assert "first in 0.txt" in found[0].text


def test_a_stuck_channel_with_holes_or_in_a_short_recording(
    ask: Callable[..., list[Finding]],
) -> None:
    one = healthy(0, seconds=6)
    gyro = np.array(one.streams["gyro"].values)
    gyro[:, 1] = 3.0
    gyro[40:45] = np.nan
    found = worst(ask(changed(one, gyro=gyro), healthy(1)), "gyro")
    assert "never changes in 1 of 2" in found.text


def test_copied_windows_are_seen_though_a_sensor_is_missing_or_constant(
    ask: Callable[..., list[Finding]],
) -> None:
    one = healthy(0)
    still = np.full((len(one.streams["acc"].values), 1), 60.0)
    people = [
        changed(
            Recording(one.streams, one.target, s, name=f"{s}.txt"), heart=still, mag=still * np.nan
        )
        for s in range(10)
    ]
    found = worst(ask(*people, split="subject"), "leakage")
    assert found.level == "error"
    count = int(found.text.split()[0])
    windows = next(f for f in ask(*people, split="subject") if f.about == "split").text
    validation, test = (int(part.split()[0]) for part in windows.split(", ")[1:3])
    assert count == validation + test


def test_what_is_not_read_is_said(ask: Callable[..., list[Finding]], tmp_path: Path) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir()
    (tmp_path / "data" / "dead.txt").symlink_to(tmp_path / "nowhere")
    found = [f for f in ask() if f.about == "files" and f.level == "warning"]
    assert "1 cannot be opened" in found[0].text


def test_infinite_values_are_missing_ones(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    acc = np.array(one.streams["acc"].values)
    acc[100] = np.inf
    findings = ask(changed(one, acc=acc), healthy(1))
    assert [f for f in findings if f.level == "error"] == []


def test_missing_values_are_counted(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    acc = np.array(one.streams["acc"].values)
    acc[: len(acc) // 4] = np.nan
    found = [f for f in ask(changed(one, acc=acc), healthy(1)) if "are missing" in f.text]
    assert found[0].text == "12 % of the values are missing"
    nothing = np.full_like(acc, np.nan)
    found = ask(changed(one, acc=nothing), changed(healthy(1), acc=nothing))
    assert worst(found, "acc").text == "holds no numbers"


def test_a_stuck_channel(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    gyro = np.array(one.streams["gyro"].values)
    gyro[:, 1] = 3.0
    found = worst(ask(changed(one, gyro=gyro), healthy(1)), "gyro")
    assert "never changes in 1 of 2 recordings, first in 0.txt" in found.text


def test_copied_recordings(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    again = Recording(one.streams, one.target, 0, name="again.txt")
    assert worst(ask(one, again), "copies").level == "warning"
    other = Recording(one.streams, one.target, 7, name="other.txt")
    found = worst(ask(one, other, healthy(2)), "copies")
    assert found.level == "error"
    assert "0.txt, other.txt hold the same values although their subjects differ" in found.text


def test_copies_across_a_split_by_subject_are_a_leak(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    people = [Recording(one.streams, one.target, s, name=f"{s}.txt") for s in range(10)]
    found = worst(ask(*people, split="subject"), "leakage")
    assert found.level == "error"
    assert "copies of training windows" in found.text


def test_streams_of_unequal_length(ask: Callable[..., list[Finding]]) -> None:
    one = healthy(0)
    found = worst(ask(changed(one, gyro=one.streams["gyro"].values[:1000]), healthy(1)), "length")
    assert "gyro ends after 20.0 s, acc after 60.0 s" in found.text


def test_a_leaky_split_is_an_error_even_without_overlap(
    ask: Callable[..., list[Finding]],
) -> None:
    assert worst(ask(split="leaky"), "leakage").level == "error"
    found = worst(ask(split="leaky", stride=0.5), "leakage")
    assert "share samples" in found.text


def test_a_split_by_subject_keeps_people_apart(ask: Callable[..., list[Finding]]) -> None:
    found = ask(split="subject")
    assert worst(found, "subjects").level == "ok"
    assert worst(found, "leakage").level == "ok"


def restless(subject: int, seconds: int = 600, every: int = 6) -> Recording:
    """As `healthy`, but the label changes every few seconds."""
    one = healthy(subject, seconds)
    labels = np.arange(int(seconds * RATE)) // int(every * RATE) % 2
    return Recording(one.streams, Stream(labels, RATE), subject, name=one.name)


def test_test_windows_beside_training_windows_of_another_class_are_counted(
    ask: Callable[..., list[Finding]],
) -> None:
    """Stretches of three windows are dealt out whole, so neighbours are in different parts."""
    people = tuple(restless(i) for i in range(4))
    found = worst(ask(*people), "nearness")
    assert found.level == "warning"
    share, rest = found.text.split(" % of the test windows are within 8 s of a training window")
    assert int(share) > 80
    assert not rest
    assert "data.apart to 8 seconds" in found.fix
    mended = worst(ask(*people, apart=8.0), "nearness")
    assert mended == Finding(
        "ok", "nearness", "0 % of the test windows are within 8 s of a training window"
    )
    assert worst(ask(*people, split="subject"), "nearness").level == "ok"


def test_classes_without_windows_and_rare_ones(ask: Callable[..., list[Finding]]) -> None:
    still = [Recording(healthy(i).streams, 0, i, name=f"{i}.txt") for i in range(3)]
    assert "no window of moving" in worst(ask(*still), "classes").text
    rare = Recording(healthy(9, seconds=2).streams, 1, 9, name="9.txt")
    assert "judge by macro-F1" in worst(ask(*still, rare), "classes").fix


def test_the_smallest_class_is_one_with_windows() -> None:
    """If all classes with windows are equally large, the empty class 0 is not named instead."""
    count = 4
    windows = Windows(
        inputs={"acc": np.zeros((count, 3, 5), np.float32)},
        target=np.array([1, 1, 2, 2]),
        owner=np.zeros(count, np.int64),
        split=np.zeros(count, np.int8),
        task=Classification(3),
        labels=("none", "walk", "sit"),
    )
    assert list(sets.classes(windows))[-1].text == "2 classes, from 2 windows (walk) to 2 (walk)"


def test_a_file_that_cannot_be_read_is_an_error_with_its_line(
    ask: Callable[..., list[Finding]],
) -> None:
    broken = Recording({}, 0, -1, name="S2.txt")
    findings = ask(healthy(0), broken)
    assert findings[-1].level == "error"
    assert findings[-1].text == "S2.txt, line 7: 5 columns, expected 6"


def test_generated_data_are_examined_by_their_windows() -> None:
    findings = list(examine(Synthetic(clients=3, windows=20)))
    assert {f.about for f in findings} >= {"windows", "classes", "split", "leakage"}
    assert [f for f in findings if f.level == "error"] == []


def test_slow_signals_that_agree_by_chance_are_no_copies(ask: Callable[..., list[Finding]]) -> None:
    people = [
        Recording({"heart": Stream(np.random.default_rng(i).integers(60, 63, (300, 1)), 1.0)}, 0, i)
        for i in range(5)
    ]
    found = ask(*people, window=4.0, units={"heart": "bpm"})
    assert worst(found, "leakage").level == "ok"


def test_clients_of_a_configuration_are_checked() -> None:
    """A client without test windows, one without training windows, and one that is tested on a
    class that it never trains on."""
    split = np.array([0, 0, 2, 0, 0, 0, 2, 2, 0, 2])
    target = np.array([0, 1, 1, 0, 0, 1, 0, 1, 0, 1])
    client_of = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    data = Windows(
        {"acc": np.zeros((10, 3, 8), np.float32)}, target, client_of, split, Classification(2)
    )
    found = list(sets.clients(data, Clients(client_of, ("anna", "bert", "carla"))))
    assert [(f.level, f.text) for f in found] == [
        ("ok", "4, from 0 training windows (carla) to 3 (bert)"),
        ("note", "carla: only tested, no training windows"),
        ("warning", "bert: no test windows, so they have no score"),
        ("note", "client 3: tested on classes that they have no training windows of"),
    ]


def test_a_partition_that_is_not_possible_is_a_finding() -> None:
    def refuse(windows: Windows) -> Clients:
        raise CommunisError("by = 'scene': all windows are of one scene")

    found = list(examine(Synthetic(), clients_of=refuse))
    assert (found[-1].level, found[-1].about) == ("error", "clients")
