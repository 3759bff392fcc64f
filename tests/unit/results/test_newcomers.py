"""What newcomers get, as tables, frames and pages show it."""

from __future__ import annotations

import json
import re
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from communis import CommunisError
from communis.cli.console import Terminal
from communis.cli.terminal import as_json, results
from communis.core.selection import SELECTS
from communis.results import Results
from communis.results.compare import collect, rows
from communis.results.newcomers import newcomers
from communis.results.report.page import render
from tests.unit import folders

# Scores of two newcomers in three rounds, the last of which is not the best.
SERVED = {"fedavg": (0.25, 0.75, 0.5), "fedprox": (0.125, 0.5, 0.375)}
WHY = "the model stays with the clients"
CLIENTS = [{"id": i, "sensors": ["acc"]} for i in range(5)]


def write(home: Path, seeds: int = 3, cell: str = "") -> None:
    """Three members, and two newcomers that local cannot serve. Members are best in round 2."""
    for method, seed in product((*SERVED, "local"), range(seeds)):
        served = SERVED.get(method)
        own = [dict.fromkeys(range(3), value + 0.01 * seed) for value in (0.5, 0.7, 0.6)]
        history: dict[str, list[dict[int, float]]] = {"test.accuracy": own, "val.accuracy": own}
        if served:
            scores = [{3: x + seed / 64, 4: x - seed / 64 + 0.25} for x in served]
            history["newcomers.accuracy"] = scores
            history["newcomers.accuracy@most_frequent"] = [{3: 0.25, 4: 0.125}] * 3
        found = [{"id": i, "unscored": "" if served else WHY} for i in (3, 4)]
        about = {"clients": CLIENTS, "newcomers": found, "labels": ["a"]}
        place = home / f"{cell}{method}{seed}"
        folders.write(
            place,
            method,
            seed,
            history,
            fleet=about,
            refused=(),
            cohort=(0, 1, 2),
            cell={"H": cell} if cell else None,
        )


def shown(home: Path, width: int = 120) -> str:
    text = StringIO()
    Terminal(file=text, width=width).print(results(collect([home]), "accuracy"))
    return text.getvalue()


def test_means_are_over_newcomers_then_over_seeds(tmp_path: Path) -> None:
    write(tmp_path)
    found = newcomers(collect([tmp_path]), "accuracy", "last")
    assert found is not None
    assert [row.method for row in found.rows] == ["fedavg", "fedprox", "local"]
    best, second, local = found.rows
    assert best.scores["accuracy"].mean == pytest.approx(0.5 + 0.125)
    assert best.scores["accuracy"].spread == pytest.approx(0.0)
    assert best.weakest.mean == pytest.approx(0.5 + fmean([0, 1, 2]) / 64)
    assert second.difference.mean == pytest.approx(-0.125)
    assert second.verdict == "worse than the best"
    assert local.scores == {}
    assert local.why == WHY
    assert found.control["accuracy"].mean == pytest.approx(0.1875)


@pytest.mark.parametrize("select", SELECTS)
def test_members_choose_the_round(tmp_path: Path, select: str) -> None:
    """Without validation windows of its own, a newcomer counts in the last round where every client
    chooses its own."""
    write(tmp_path)
    found = newcomers(collect([tmp_path]), "accuracy", select)  # type: ignore[arg-type]
    expected = {"last": 0.5, "common": 0.75, "client": 0.5, "tail": 0.5}[select]
    assert found is not None
    assert found.rows[0].scores["accuracy"].mean == pytest.approx(expected + 0.125)


def test_members_numbers_do_not_know_them(tmp_path: Path) -> None:
    write(tmp_path)
    for row in rows(collect([tmp_path]), "accuracy", "client"):
        assert row.scores["accuracy"].mean == pytest.approx(0.71)
    frame = Results.read(tmp_path).client_scores
    assert set(frame["client"]) == {0, 1, 2}


def test_the_terminal_has_a_table_and_names_who_can_serve(tmp_path: Path) -> None:
    write(tmp_path)
    text = shown(tmp_path)
    lines = [line.split() for line in text.splitlines()]
    assert ["fedavg", "0.625", "±", "0.000", "0.516", "best"] in lines
    assert ["local", "-", "-", "no", "common", "model"] in lines
    assert ["most", "frequent", "class", "0.188", "±", "0.000", "-"] in lines
    words = " ".join(text.split())
    assert "3 clients, 2 newcomers, 3 rounds" in words
    assert f"No common model: local ({WHY}); those that have one: fedavg and fedprox." in words
    found = as_json(collect([tmp_path]), "accuracy")["newcomers"]
    assert [row["method"] for row in found[0]["rows"]] == ["fedavg", "fedprox", "local"]
    json.dumps(found)


def test_where_nobody_can_serve_them_that_is_said(tmp_path: Path) -> None:
    write(tmp_path)
    only = [run for run in collect([tmp_path]) if run.method == "local"]
    text = StringIO()
    Terminal(file=text, width=120).print(results(only, "accuracy"))
    assert not re.search("^newcomers  ", text.getvalue(), re.MULTILINE)
    words = " ".join(text.getvalue().split())
    assert f"No common model: local ({WHY}); no method here has one." in words
    page = render(only, "accuracy", "t")
    assert "What does a newcomer get?" in page
    assert "no method here has one" in page


def test_without_newcomers_there_is_nothing(tmp_path: Path) -> None:
    folders.write(tmp_path, "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    assert newcomers(collect([tmp_path]), "accuracy", "last") is None
    assert "newcomer" not in shown(tmp_path)
    assert "newcomer" not in render(collect([tmp_path]), "accuracy", "t")
    found = Results.read(tmp_path)
    assert found.newcomers.empty
    assert found.newcomer_scores.empty
    assert found.newcomer_differences.empty


def test_frames_have_every_value(tmp_path: Path) -> None:
    write(tmp_path)
    found = Results.read(tmp_path)
    means = found.newcomers.query("over_clients == 'mean'").set_index("method")
    assert means["mean"].to_dict() == pytest.approx(
        {"fedavg": 0.625, "fedprox": 0.5, "local": float("nan"), "most_frequent": 0.1875},
        nan_ok=True,
    )
    assert means.loc["local", "unscored"] == WHY
    again = found.newcomer_scores.groupby("method")["score"].mean()
    assert again.to_dict() == pytest.approx({"fedavg": 0.625, "fedprox": 0.5})
    assert set(found.newcomer_scores["client"]) == {3, 4}
    assert set(found.newcomer_scores["sensors"]) == {"acc"}
    against = found.newcomer_differences.set_index("method")
    assert against.loc["fedprox", "mean"] == pytest.approx(-0.125)
    assert set(found.round_scores["split"]) == {"test", "val", "newcomers"}


def test_over_the_cells_of_a_grid(tmp_path: Path) -> None:
    write(tmp_path, cell="low")
    write(tmp_path, cell="high")
    found = newcomers(collect([tmp_path]), "accuracy", "last")
    assert found is not None
    assert found.rows[0].scores["accuracy"].mean == pytest.approx(0.625)
    assert found.rows[0].scores["accuracy"].seeds == 3
    assert "newcomers" in shown(tmp_path)
    page = render(collect([tmp_path]), "accuracy", "t")
    assert page.count("What does a newcomer get?") == 3  # over all cells, and in each


def test_one_that_diverged_is_not_left_out(tmp_path: Path) -> None:
    history = {
        "test.accuracy": [{0: 0.5}],
        "newcomers.accuracy": [{1: float("nan"), 2: 0.9}],
    }
    about = {"clients": CLIENTS, "newcomers": [{"id": i, "unscored": ""} for i in (1, 2)]}
    folders.write(tmp_path, "fedavg", 0, history, fleet=about)
    found = newcomers(collect([tmp_path]), "accuracy", "last")
    assert found is not None
    assert found.rows[0].scores["accuracy"].diverged == 1


@pytest.mark.parametrize(
    "newcomer", [{"id": 9, "unscored": ""}, {"id": "x", "unscored": ""}, {"id": 1}, 3]
)
def test_a_forged_description_is_refused(tmp_path: Path, newcomer: object) -> None:
    about = {"clients": CLIENTS, "newcomers": [newcomer]}
    folders.write(tmp_path, "fedavg", 0, {"test.accuracy": [{0: 0.5}]}, fleet=about)
    with pytest.raises(CommunisError, match=r"fleet\.json: not as this version writes it"):
        newcomers(collect([tmp_path]), "accuracy", "last")
