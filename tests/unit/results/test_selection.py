"""Which round counts, on run folders made by hand."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from communis.cli.terminal import as_json, out, results
from communis.results.compare import collect, rows
from communis.results.finished import read
from communis.results.over_cells import lines
from communis.results.report import views
from communis.results.report.page import render
from communis.results.wording.scores import how_to_read
from tests.unit import folders

HISTORY = {  # the best round is 3 on average and for client 1, 2 (as good as 3) for client 0
    "val.accuracy": [{0: 0.1, 1: 0.5}, {0: 0.9, 1: 0.6}, {0: 0.9, 1: 0.7}, {0: 0.2, 1: 0.1}],
    "test.accuracy": [
        {0: 0.11, 1: 0.12, 2: 0.13},
        {0: 0.21, 1: 0.22, 2: 0.23},
        {0: 0.31, 1: 0.32, 2: 0.33},
        {0: 0.41, 1: 0.42, 2: 0.43},
    ],
}


def test_the_round_that_counts(tmp_path: Path) -> None:
    """Client 2 has no validation windows."""
    run = read(folders.write(tmp_path, "alpha", 0, HISTORY))
    assert run.final("accuracy") == pytest.approx(0.42)
    assert run.final("accuracy", "common") == pytest.approx(0.32)  # means .3, .75, .8, .15
    assert dict(run.by_client("accuracy", "client")) == {0: 0.21, 1: 0.32, 2: 0.43}
    assert run.final("accuracy", "client") == pytest.approx((0.21 + 0.32 + 0.43) / 3)
    assert math.isnan(run.final("f1", "client"))


def test_lower_validation_errors_are_better(tmp_path: Path) -> None:
    history = {key.replace("accuracy", "nll"): values for key, values in HISTORY.items()}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert run.final("nll", "common") == pytest.approx(0.42)  # .15 in round 4
    assert dict(run.by_client("nll", "client")) == {0: 0.11, 1: 0.42, 2: 0.43}


def test_of_equal_rounds_the_earliest_counts(tmp_path: Path) -> None:
    history = {"val.accuracy": [{0: 0.5}] * 3, "test.accuracy": [{0: 0.1}, {0: 0.2}, {0: 0.3}]}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert (run.final("accuracy", "common"), run.final("accuracy", "client")) == (0.1, 0.1)


def test_without_validation_the_last_round_counts(tmp_path: Path) -> None:
    history = {"test.accuracy": HISTORY["test.accuracy"]}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    for select in ("common", "client"):
        assert run.final("accuracy", select) == pytest.approx(0.42)  # type: ignore[arg-type]


def test_a_round_that_cannot_be_validated_is_not_chosen(tmp_path: Path) -> None:
    nan = math.nan
    history = {
        "val.accuracy": [{0: 0.9, 1: nan}, {0: 0.5, 1: 0.5}, {0: nan, 1: nan}],
        "test.accuracy": [{0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.4}, {0: nan, 1: nan}],
    }
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert math.isnan(run.final("accuracy"))
    assert run.final("accuracy", "common") == pytest.approx(0.3)
    assert dict(run.by_client("accuracy", "client")) == {0: 0.1, 1: 0.4}


def test_rank_and_verdict_follow_the_selection(tmp_path: Path) -> None:
    for seed in range(3):
        steady = {"val.accuracy": [{0: 0.5}] * 2, "test.accuracy": [{0: 0.5}, {0: 0.6}]}
        early = {"val.accuracy": [{0: 0.9}, {0: 0.1}], "test.accuracy": [{0: 0.7}, {0: 0.1}]}
        folders.write(tmp_path / f"a{seed}", "steady", seed, steady)
        folders.write(tmp_path / f"b{seed}", "early", seed, early)
    runs = collect([tmp_path])
    assert [row.method for row in rows(runs, "accuracy")] == ["steady", "early"]
    table = rows(runs, "accuracy", "client")
    assert [row.method for row in table] == ["early", "steady"]
    assert {s: e.mean for s, e in table[0].selected.items()} == pytest.approx(
        {"last": 0.1, "common": 0.7, "client": 0.7, "tail": 0.4}
    )
    assert table[0].scores["accuracy"] == table[0].selected["client"]
    assert table[1].verdict == "worse than the best"
    assert "best round of every client" in how_to_read(runs, table, "accuracy", "client")
    assert "favours personalised methods" in how_to_read(runs, table, "accuracy")


def test_one_metric_chooses_the_round_for_all(tmp_path: Path) -> None:
    """Calibration is best before training; alone, it would describe the untrained model."""
    history = {
        "val.macro_f1": [{0: 0.1, 1: 0.2}, {0: 0.9, 1: 0.5}, {0: 0.2, 1: 0.6}],
        "val.ece": [{0: 0.01, 1: 0.01}, {0: 0.2, 1: 0.2}, {0: 0.3, 1: 0.3}],
        "val.macro_f1@tempered": [{0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.2}, {0: 0.9, 1: 0.9}],
        "test.macro_f1": [{0: 0.10, 1: 0.11}, {0: 0.20, 1: 0.21}, {0: 0.30, 1: 0.31}],
        "test.ece": [{0: 0.02, 1: 0.03}, {0: 0.12, 1: 0.13}, {0: 0.22, 1: 0.23}],
        "test.macro_f1@tempered": [{0: 0.4, 1: 0.4}, {0: 0.5, 1: 0.5}, {0: 0.6, 1: 0.6}],
    }
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert run.final("ece", "common") == pytest.approx(0.025)  # asked for by itself
    assert run.final("ece", "common", "macro_f1") == pytest.approx(0.125)
    assert dict(run.by_client("ece", "client", "macro_f1")) == {0: 0.12, 1: 0.23}
    assert dict(run.by_client("ece", "last", "macro_f1")) == {0: 0.22, 1: 0.23}
    runs = collect([tmp_path])
    assert rows(runs, "macro_f1", "common")[0].scores["ece"].mean == pytest.approx(0.125)
    # The view chooses for itself where it is the metric to compare by.
    assert rows(runs, "macro_f1@tempered", "common")[0].scores["ece"].mean == pytest.approx(0.225)
    text = views.section(runs, "macro_f1", "common")
    assert "best mean validation macro f1" in text
    assert "<td>0.500</td>" in text
    assert "<td>0.600</td>" not in text


def test_the_tail_is_every_clients_mean_over_the_last_five_evaluated_rounds(tmp_path: Path) -> None:
    """Round 6 was not evaluated, and client 1 only now and then."""
    accuracy = [{0: 0.9, 1: 0.9}, {0: 0.1}, {0: 0.2, 1: 0.4}, {0: 0.3}, {0: 0.4}, {}]
    history = {
        "test.accuracy": [*accuracy, {0: 0.5, 1: 0.6}],
        "test.mae": [{c: 10 * v for c, v in row.items()} for row in [*accuracy, {0: 0.5, 1: 0.6}]],
        "val.accuracy": [{0: 0.9, 1: 0.9}, *[{0: 0.1, 1: 0.1}] * 6],  # has no say
    }
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert dict(run.by_client("accuracy", "tail")) == pytest.approx({0: 0.3, 1: 0.5})
    assert dict(run.by_client("mae", "tail", "accuracy")) == pytest.approx({0: 3.0, 1: 5.0})
    assert run.final("accuracy", "tail") == pytest.approx(0.4)
    few = read(folders.write(tmp_path / "few", "alpha", 0, HISTORY))
    assert dict(few.by_client("accuracy", "tail")) == pytest.approx({0: 0.26, 1: 0.27, 2: 0.28})
    assert math.isnan(few.final("f1", "tail"))


def test_the_tail_where_some_clients_are_scored_in_a_round(tmp_path: Path) -> None:
    """The last five rounds of all, whoever was scored in them: client 0 not since round 1."""
    values = [{0: 0.9}, *({1: 0.1 * i} for i in range(1, 6)), {2: 0.7}]
    run = read(folders.write(tmp_path, "alpha", 0, {"test.accuracy": values}))
    assert dict(run.by_client("accuracy", "tail")) == pytest.approx({1: 0.35, 2: 0.7})


def test_a_tail_with_a_round_that_diverged_has_no_mean(tmp_path: Path) -> None:
    values = [{0: math.nan, 1: 0.5}, *[{0: 0.5, 1: 0.5}] * 4]
    run = read(folders.write(tmp_path / "a", "alpha", 0, {"test.accuracy": values}))
    found = run.by_client("accuracy", "tail")
    assert math.isnan(found[0])
    assert found[1] == 0.5
    longer = {"test.accuracy": [*values, {0: 0.5, 1: 0.5}]}  # it is out of the tail by now
    assert read(folders.write(tmp_path / "b", "alpha", 0, longer)).final("accuracy", "tail") == 0.5


def test_everything_that_is_shown_can_be_of_the_tail(tmp_path: Path) -> None:
    """One method ends better, the other was better over the last rounds; lower errors are better,
    and the weakest client is the one with the largest."""
    for seed, (level, easy) in product(range(3), (("low", 0.0), ("high", 0.5))):
        shift = easy + 0.01 * seed
        late = {"test.mae": [{0: 2 + shift, 1: 3 + shift}, {0: shift, 1: shift}]}
        even = {"test.mae": [{0: 0.5 + shift, 1: 1 + shift}] * 2}
        for method, history in (("late", late), ("even", even)):
            place = tmp_path / f"{level}{method}{seed}"
            folders.write(place, method, seed, history, cell={"H": level})
    runs = collect([tmp_path])
    assert [line.method for line in lines(runs, "mae", "last")] == ["late", "even"]
    even_line, late_line = lines(runs, "mae", "tail")
    assert (even_line.method, late_line.verdict) == ("even", "worse than the best")
    assert even_line.average == even_line.selected["tail"]
    assert even_line.average.mean == pytest.approx(0.75 + 0.25 + 0.01)
    row = late_line.cells["H low"]
    assert row.scores["mae"].mean == pytest.approx(1.25 + 0.01)
    assert row.weakest.mean == pytest.approx(1.5 + 0.01)
    text = render(runs, "mae", "t", "tail")
    assert "last<br>five" in text
    assert "Scores are means over clients in the last five evaluated rounds (their mean)" in text
    with out.capture() as said:
        out.print(results(runs, "mae", "tail"))
    assert "last five" in said.get()
    assert as_json(runs, "mae", "tail")["averages"][0]["method"] == "even"


def test_without_validation_all_choices_are_the_last_round(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "alpha", 0, {"test.accuracy": [{0: 0.5}]})
    runs = collect([tmp_path])
    text = how_to_read(runs, rows(runs, "accuracy"), "accuracy")
    assert "No client has validation windows" in text
    assert "favours personalised" not in text
