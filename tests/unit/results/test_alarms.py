"""Alarms: each is raised where it should be, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from communis import Score
from communis.cli.terminal import as_json, out, results
from communis.exchange.messages import Scored
from communis.results import Results
from communis.results.alarms import alarms
from communis.results.compare import collect
from communis.results.constant import constant_scores, predicted, windows
from communis.results.report.page import render
from communis.results.wording.alarms import sentences
from tests.unit import folders

CLASSES = ("walking", "sitting", "falling")
# The test windows by client and class; the most frequent class is walking.
SUPPORT = ((6, 2, 2), (4, 4, 2), (0, 5, 5))


def counted(said: Sequence[int], support: Sequence[Sequence[int]] = SUPPORT) -> list[Scored]:
    """The rows by which clients count windows by class; said: the windows of every client that were
    predicted as each class."""
    rows = []
    for client, there in enumerate(support):
        for label, (count, predictions) in enumerate(zip(there, said, strict=True)):
            names = [("f1", 0.5)] * bool(count)
            names += [("said", float(predictions))] * bool(count or predictions)
            for name, value in names:
                rows.append(Scored(client, "test", "acc", True, Score(name, value, label, count)))
    return rows


def write(
    home: Path,
    method: str,
    seed: int,
    scores: Mapping[int, float],
    said: Sequence[int] = (5, 3, 2),
    **about: Any,
) -> Path:
    return folders.write(
        home / f"{method}{seed}{about.get('cell', '')}",
        method,
        seed,
        {"test.accuracy": [scores]},
        fleet={"labels": list(CLASSES)},
        rows={"scores": [counted(said)]},
        **about,
    )


def raised(home: Path) -> dict[str, list[str]]:
    """The methods by alarm."""
    found: dict[str, list[str]] = {}
    for alarm in alarms(collect([home]), "accuracy", "last"):
        found.setdefault(alarm.alarm, []).append(alarm.method)
    return found


def test_the_most_frequent_class_by_hand(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, {0: 0.5, 1: 0.5, 2: 0.5})
    (run,) = collect([tmp_path])
    assert windows(run, "accuracy").to_numpy().tolist() == [list(map(float, x)) for x in SUPPORT]
    assert predicted(run, "accuracy").sum().tolist() == [15, 9, 6]
    # Sitting: 11 of all windows; walking has 10, and falling 9.
    by_accuracy = constant_scores([run], "accuracy", "last")[0, ""]
    assert by_accuracy.tolist() == pytest.approx([0.2, 0.4, 0.5])


def test_macro_f1_of_the_most_frequent_class(tmp_path: Path) -> None:
    """As scikit-learn has it: the mean over the classes that are there or predicted."""
    path = tmp_path / "a"
    folders.write(
        path,
        "fedavg",
        0,
        {"test.macro_f1": [{0: 0.5, 1: 0.5, 2: 0.5}]},
        rows={"scores": [counted((5, 3, 2), ((6, 2, 2), (4, 0, 6), (0, 0, 5)))]},
    )
    found = constant_scores(collect([path]), "macro_f1", "last")[0, ""]
    # Falling: f1 = 2 * 2 / (10 + 2) of three classes, 12 / 16 of two, 1 of one.
    assert found.tolist() == pytest.approx([4 / 12 / 3, 12 / 16 / 2, 1.0])
    assert constant_scores(collect([path]), "macro_f1_pooled", "last")[0, ""].equals(found)
    assert constant_scores(collect([path]), "nll", "last") == {}


def test_a_good_comparison_raises_nothing(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, "local", seed, {0: 0.7, 1: 0.72, 2: 0.71})
        write(tmp_path, "fedavg", seed, {0: 0.9, 1: 0.93, 2: 0.9})
    assert raised(tmp_path) == {}
    assert "alarm" not in shown(tmp_path)


def test_what_is_no_better_than_the_most_frequent_class(tmp_path: Path) -> None:
    """With enough seeds also what cannot be told from it."""
    for seed in range(3):
        write(tmp_path, "local", seed, {0: 0.9, 1: 0.9, 2: 0.9})
        write(tmp_path, "fedavg", seed, {0: 0.2, 1: 0.4, 2: 0.5})
        write(tmp_path, "fedprox", seed, {0: 0.19, 1: 0.5, 2: 0.52})
    assert raised(tmp_path)["nothing learned"] == ["fedavg", "fedprox"]
    text = shown(tmp_path)
    assert "Nothing learned: by accuracy, fedavg (+0.000) and fedprox (+0.037) are not" in text


def test_a_class_that_is_never_predicted(tmp_path: Path) -> None:
    for seed in range(3):
        good = {0: 0.9, 1: 0.9, 2: 0.9}
        write(tmp_path, "local", seed, {0: 0.7, 1: 0.7, 2: 0.7})
        write(tmp_path, "fedavg", seed, good, said=(5, 5, 0) if seed else (4, 4, 2))
    found = alarms(collect([tmp_path]), "accuracy", "last")
    assert [(a.alarm, a.method, a.about, a.runs, a.of) for a in found] == [
        ("class never predicted", "fedavg", "falling", 2, 3)
    ]
    assert found[0].value == pytest.approx(9 / 30)
    assert "fedavg: falling (in 2 of 3 runs)." in shown(tmp_path)


def test_names_of_classes_do_not_steer_a_terminal(tmp_path: Path) -> None:
    history = {"test.accuracy": [dict.fromkeys(range(3), 0.9)]}
    labels = ["a", "b", "\x1b[31mred"]
    rows = {"scores": [counted((5, 5, 0))]}
    folders.write(tmp_path / "a", "a", 0, history, fleet={"labels": labels}, rows=rows)
    text = shown(tmp_path)
    assert "\\x1b[31mred (in 1 of 1 run)" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([1, 1, 1, 1, 1, 1, 0.8, 0.8], True),
        ([4, 3, 2, 1, 0.8, 0.8, 0.75, 0.75], False),  # 2 % of the fall
        ([4, 3, 2, 1, 0.5, 0.25, 0.1, 0.05], False),  # 9 % of it, and most of what was left
        ([4, 3, 2, 1.5, 1, 0.75, 0.5, 0.25], True),  # 16 %
        ([4, 3, 2, 1], False),  # too short
        ([1, 1, 1, 1, 1, 1, 2, 2], False),
        ([1, 1, 1, 1, 0, 0, 0, 0], False),
        ([1, 1, 1, 1, 1, 1, float("nan"), 0.1, 0.1], True),  # a round without a loss is left out
    ],
)
def test_a_loss_that_still_falls(tmp_path: Path, losses: list[float], falls: bool) -> None:
    path = folders.write(tmp_path / "a", "a", 0, {"test.accuracy": [{0: 0.5}] * len(losses)})
    records = folders.records_in(path)
    for record, loss in zip(records, losses, strict=True):
        record["loss"] = loss
    folders.write_records(path, records)
    assert ("loss still falls" in raised(tmp_path)) == falls


@pytest.mark.parametrize(
    ("gains", "seeds", "alone"),
    [
        ((0.2, 0.2, 0.2), 3, False),
        ((0.2, 0.2, 0.2), 2, False),
        ((0.2, -0.15, -0.04), 3, True),  # better by the mean, but not shown to be
        ((0.2, -0.15, -0.04), 2, False),  # two seeds show nothing
        ((-0.2, -0.2, -0.2), 2, True),
        ((-0.2, -0.2, -0.2), 3, True),
    ],
)
def test_training_alone_that_is_not_beaten(
    tmp_path: Path, gains: Sequence[float], seeds: int, alone: bool
) -> None:
    for seed in range(seeds):
        write(tmp_path, "local", seed, dict.fromkeys(range(3), 0.7))
        write(tmp_path, "fedavg", seed, {i: 0.7 + gain for i, gain in enumerate(gains)})
        write(tmp_path, "fedprox", seed, dict.fromkeys(range(3), 0.4))
    found = raised(tmp_path)
    assert found.get("training alone not beaten") == (["fedavg"] if alone else None)
    if alone:
        wins = sum(gains) < 0
        assert ("Training alone (local) wins" in shown(tmp_path)) == wins


def test_cells_are_counted(tmp_path: Path) -> None:
    for level, seed in product(("low", "high"), range(2)):
        bad = level == "low"
        write(tmp_path, "local", seed, dict.fromkeys(range(3), 0.7), cell={"H": level})
        scores = dict.fromkeys(range(3), 0.1 if bad else 0.9)
        said = (9, 0, 1) if bad else (5, 3, 2)
        write(tmp_path, "fedavg", seed, scores, said, cell={"H": level})
    text = shown(tmp_path)
    assert "fedavg (-0.267, in 1 of 2 cells) is not shown" in text
    assert "fedavg: sitting (in 2 of 2 runs)" in text
    assert "In 1 of 2 cells no method is shown to be better than training alone (local)." in text
    assert text.count("2 seeds are too few") == 1


def test_pages_programs_and_frames_have_them(tmp_path: Path) -> None:
    write(tmp_path, "local", 0, dict.fromkeys(range(3), 0.1))
    write(tmp_path, "fedavg", 0, dict.fromkeys(range(3), 0.05), said=(9, 0, 1))
    runs = collect([tmp_path])
    words = sentences(alarms(runs, "accuracy", "last"), "accuracy", 1)
    assert len(words) == 4
    page = render(runs, "accuracy", "t")
    for text in words:
        assert f"<p class='warning'>{text}</p>" in page
    kinds = [row["alarm"] for row in as_json(runs, "accuracy")["alarms"]]
    assert kinds == Results.read(tmp_path).alarms["alarm"].tolist()
    assert kinds[0] == "too few seeds"


def shown(home: Path) -> str:
    with out.capture() as said:
        out.print(results(collect([home]), "accuracy"))
    return " ".join(said.get().split())
