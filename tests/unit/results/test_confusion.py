"""Which classes are taken for which, from kept predictions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from communis.results import Results
from communis.results.compare import collect
from communis.results.confusion import confusions
from communis.results.finished import Finished
from communis.results.report import confusion
from communis.results.report.page import render
from tests.unit import folders

LABELS = ["walk <b>", "sit", "fall"]
WALK, SIT, FALL = np.eye(3).tolist()


def write(home: Path, method: str, seed: int, **about: object) -> Path:
    fleet = {"labels": LABELS, **about}
    history = {"test.accuracy": [{0: 0.5, 1: 0.5}] * 3}
    return folders.write(home / f"{method}{seed}", method, seed, history, fleet=fleet)


def test_windows_of_all_clients_and_seeds_are_counted(tmp_path: Path) -> None:
    for seed in range(2):
        folders.keep(write(tmp_path, "a", seed), [0, 0, 1], [0, 1, 1], [WALK, SIT, WALK])
    write(tmp_path, "a", 2)  # keeps nothing
    write(tmp_path, "b", 0)
    (found,) = confusions(collect([tmp_path]), "last")
    assert (found.method, found.runs, found.unusable) == ("a", 2, 0)
    assert found.windows.tolist() == [[2, 0, 0], [2, 2, 0], [0, 0, 0]]
    assert found.shares[:2].tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert np.isnan(found.shares[2]).all()


@pytest.mark.parametrize(
    ("select", "right"), [("last", 0), ("tail", 0), ("common", 1), ("client", 1)]
)
def test_the_selection_chooses_the_round(tmp_path: Path, select: str, right: int) -> None:
    """What validation chooses is nearest to the best round that was kept."""
    folders.keep(write(tmp_path, "a", 0), [0], [0], [SIT], best=[WALK])
    (found,) = confusions(collect([tmp_path]), select)  # type: ignore[arg-type]
    assert found.windows[0, 0] == right


def test_predictions_that_should_be_there_are_missed(tmp_path: Path) -> None:
    run = write(tmp_path, "a", 0)
    settings = (run / "config.toml").read_text("utf-8")
    assert not confusions(collect([tmp_path]), "last")
    assert "rounds = 3" in settings
    text = settings.replace("rounds = 3", "rounds = 3\nkeep = true")
    (run / "config.toml").write_text(text, "utf-8")
    (found,) = confusions(collect([tmp_path]), "last")
    assert found.runs == 0
    assert str(run / "learned.json") in found.problems[0]


def test_newcomers_and_attackers_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path, "a", 0, attackers=[1], newcomers=[{"id": 2, "unscored": ""}])
    folders.keep(path, [0, 1, 2], [0, 0, 0], [WALK, SIT, FALL])
    (found,) = confusions(collect([tmp_path]), "last")
    assert found.windows.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_windows_without_finite_scores_are_named(tmp_path: Path) -> None:
    folders.keep(write(tmp_path, "a", 0), [0, 0], [0, 1], [WALK, [math.nan, 0, 1]])
    (found,) = confusions(collect([tmp_path]), "last")
    assert (found.windows.sum(), found.unusable) == (1, 1)
    assert "1 windows are left out: their scores are not finite" in confusion.section(
        collect([tmp_path]), "last"
    )


def test_other_tasks_have_none(tmp_path: Path) -> None:
    """A measured target, scores of other outputs, and classes that the fleet does not have."""
    folders.keep(write(tmp_path / "a", "a", 0), [0], [0.5], [WALK])
    folders.keep(write(tmp_path / "b", "b", 0), [0], [0], [[1.0, 0.0]])
    folders.keep(write(tmp_path / "c", "c", 0), [0], [3], [WALK])
    folders.keep(write(tmp_path / "d", "d", 0, labels=[]), [0], [0], [[1.0]])
    assert confusions(collect([tmp_path]), "last") == []


def test_classes_without_names_have_numbers(tmp_path: Path) -> None:
    for seed in range(2):
        folders.keep(write(tmp_path, "a", seed, labels=[]), [0], [1], [WALK])
    (found,) = confusions(collect([tmp_path]), "last")
    assert found.labels == ("0", "1", "2")
    assert found.windows.tolist() == [[0, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_damaged_predictions_do_not_cost_the_page(tmp_path: Path) -> None:
    path = write(tmp_path, "a", 0)
    folders.keep(path, [0], [0], [WALK])
    (path / "learned" / "predictions-000003.parquet").write_bytes(b"x")
    text = render(collect([tmp_path]), "accuracy", "t")
    assert "predictions-000003.parquet" in text
    assert "<p class='lead'>" in text


def test_the_page_folds_matrices_with_their_support(tmp_path: Path) -> None:
    folders.keep(write(tmp_path, "a", 0), [0, 0, 0], [0, 1, 1], [WALK, SIT, WALK])
    runs = collect([tmp_path])
    text = confusion.section(runs, "last")
    assert "<details class=''><summary>a</summary>" in text
    assert "walk &lt;b&gt;" in text
    row = text[text.index("<th scope='row'>sit") :]
    row = row[: row.index("</tr>")]
    assert ">0.50</td>" in row
    assert row.endswith("<td>2</td>")
    frame = Results.read(tmp_path).confusions.query("label == 'sit'")
    assert frame["share"].tolist() == [0.5, 0.5, 0.0]
    assert frame["support"].tolist() == [2, 2, 2]


def test_predictions_are_read_for_a_page_of_one_cell_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading those of a large grid would take longer than everything else."""
    read: list[object] = []

    def note(runs: list[Finished], select: str) -> list[object]:
        read.append(select)
        return []

    monkeypatch.setattr(confusion, "confusions", note)
    for level in ("low", "high"):
        history = {"test.accuracy": [{0: 0.5}]}
        folders.write(tmp_path / "grid" / level, "a", 0, history, cell={"H": level})
    render(collect([tmp_path / "grid"]), "accuracy", "t")
    assert read == []
    render(collect([tmp_path / "grid" / "low"]), "accuracy", "t")
    assert read == ["last"]
