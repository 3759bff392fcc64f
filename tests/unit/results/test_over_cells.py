"""The cells of a grid, on run folders made by hand."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from communis import CommunisError
from communis.cli.terminal import as_json, out, results
from communis.results.compare import collect, paired, rows, runs_by_cell
from communis.results.over_cells import lines, mark
from communis.results.report import over_cells as page
from tests.unit import folders


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two methods in two cells, three seeds; the second method lacks a seed in one of them."""
    scores = {
        ("alpha", "low"): (0.80, 0.82, 0.84),
        ("alpha", "high"): (0.50, 0.54, 0.52),
        ("beta", "low"): (0.82, 0.80, 0.87),
        ("beta", "high"): (0.30, 0.35),
    }
    for (method, level), values in scores.items():
        for seed, value in enumerate(values):
            history = {"test.accuracy": [{0: value, 1: value}]}
            place = tmp_path / f"{level}-{method}-{seed}"
            folders.write(place, method, seed, history, cell={"H": level})
    return tmp_path


def test_cells_are_neither_averaged_nor_paired(grid: Path) -> None:
    runs = collect([grid])
    assert {run.method for run in runs} == {"alpha", "beta"}  # other settings of a cell: no labels
    found = runs_by_cell(runs)
    assert sorted(found) == ["H high", "H low"]
    assert found["H low"][0].cell == {"H": "low"}
    with pytest.raises(CommunisError, match="compare each cell by itself: H high; H low"):
        rows(runs, "accuracy")
    low = [run for run in found["H low"] if run.method == "alpha"]
    high = [run for run in found["H high"] if run.method == "beta"]
    assert paired(high, low, "accuracy").seeds == 0


def test_averages_over_cells_come_before_seeds(grid: Path) -> None:
    alpha, beta = lines(collect([grid]), "accuracy", "last")
    assert (alpha.method, beta.method) == ("alpha", "beta")
    assert alpha.average.mean == pytest.approx((0.65 + 0.68 + 0.68) / 3)
    assert alpha.average.spread == pytest.approx(0.0173205, rel=1e-4)
    assert beta.average.seeds == 2  # the seeds that both cells have: 0.56, 0.575
    assert beta.average.mean == pytest.approx(0.5675)
    assert beta.difference.mean == pytest.approx((0.56 + 0.575 - 0.65 - 0.68) / 2)
    assert beta.cells["H low"].scores["accuracy"].seeds == 3
    assert mark(beta.cells["H low"].verdict) == "*"
    assert mark(alpha.cells["H low"].verdict) == "~"  # -0.02, 0.02, -0.03
    assert mark("worse than the best") == mark("too few seeds") == ""


def test_a_method_without_a_cell_has_no_average(grid: Path) -> None:
    history = {"test.accuracy": [{0: 0.99}]}
    folders.write(grid / "gamma", "gamma", 0, history, cell={"H": "low"})
    found = lines(collect([grid]), "accuracy", "last")
    assert [line.method for line in found] == ["alpha", "beta", "gamma"]
    assert math.isnan(found[2].average.mean)
    assert found[2].verdict == "no seed in common"


def test_results_in_the_terminal_and_for_programs(grid: Path) -> None:
    runs = collect([grid])
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    for word in ("H low", "average", "0.820~ ± 0.020", "alpha", "2 cells", "cannot be told apart"):
        assert word in " ".join(said.get().split())
    found = as_json(runs, "accuracy")
    assert [row["cell"]["H"] for row in found["rows"]] == ["high", "high", "low", "low"]
    assert [row["method"] for row in found["averages"]] == ["alpha", "beta"]
    assert found["select"] == "last"


def test_cells_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    levels = {"H": ["none", "mild", "harsh"], "I": ["b", "a"]}
    for h, i in product(sorted(levels["H"]), sorted(levels["I"])):
        history = {"test.accuracy": [{0: 0.5}]}
        place = tmp_path / f"{h}{i}"
        folders.write(place, "alpha", 0, history, cell={"H": h, "I": i}, levels=levels)
    runs = collect([tmp_path])
    expected = [f"H {h}, I {i}" for h, i in product(*levels.values())]
    assert list(runs_by_cell(runs)) == list(runs_by_cell(runs[::-1])) == expected
    text = "".join(page.sections(runs, "accuracy", "last", {"alpha": "#000"}))
    assert (
        text.index("<th scope='row'>none</th>")
        < text.index("<th scope='row'>mild</th>")
        < text.index("<th scope='row'>harsh</th>")
    )
    assert "<th>b</th><th>a</th>" in text.replace(" scope='col'", "")
    # The list of all levels is no setting of a run.
    folders.write(tmp_path / "old", "beta", 0, history, cell={"H": "mild", "I": "a"})
    with_old = runs_by_cell(collect([tmp_path]))["H mild, I a"]
    assert "not comparable" not in rows(with_old, "accuracy")[1].verdict


def test_no_method_with_all_cells_means_no_best(tmp_path: Path) -> None:
    for method, level in (("alpha", "low"), ("beta", "high")):
        history = {"test.accuracy": [{0: 0.5}]}
        folders.write(tmp_path / method, method, 0, history, cell={"H": level})
    found = lines(collect([tmp_path]), "accuracy", "last")
    assert [mark(line.verdict) for line in found] == ["", ""]
    with out.capture() as said:
        out.print(results(collect([tmp_path]), "accuracy"))
    assert "none is called the best" in " ".join(said.get().split())


def test_other_scores_over_cells(tmp_path: Path) -> None:
    for level, seed in product(("low", "high"), range(2)):
        nll = 1.0 + 0.1 * seed + 0.5 * (level == "high")
        history = {"val.accuracy": [{0: 0.9}, {0: 0.1}], "test.accuracy": [{0: 0.9}, {0: 0.1}]}
        history["test.nll"] = [{0: nll}, {0: 9.0}]
        folders.write(tmp_path / f"{level}{seed}", "alpha", seed, history, cell={"H": level})
    runs = collect([tmp_path])
    text = "".join(page.sections(runs, "accuracy", "common", {"alpha": "#000"}))
    others = text[text.index("<h2>Other scores") :]
    assert "<td>1.300 ± 0.071</td>" in others  # 1.25 and 1.35
    assert "The lower, the better: nll." in others
    assert "brier" not in others
    assert "best mean validation accuracy" in others


def test_counting_over_cells(tmp_path: Path) -> None:
    for level, mae in (("low", 1.0), ("high", 2.0)):
        history = {"test.accuracy": [{0: 0.9}], "test.macro_f1": [{0: 0.8}], "test.mae": [{0: mae}]}
        folders.write(tmp_path / level, "alpha", 0, history, cell={"H": level})
    text = "".join(page.sections(collect([tmp_path]), "accuracy", "last", {"alpha": "#000"}))
    others = text[text.index("<h2>Other scores") :]
    assert "<th>macro f1</th><th>mae</th>" in others.replace(" scope='col'", "")
    assert "<td>0.800</td><td>1.500</td>" in others
    assert "The lower, the better: mae." in others
