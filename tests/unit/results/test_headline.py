"""The first sentences: who wins, at which cost, against whom, and for newcomers."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

from communis.cli.terminal import as_json, out, results
from communis.results.compare import collect
from communis.results.report.page import render
from communis.results.wording.headline import headline
from tests.unit import folders
from tests.unit.results import test_alarms as alarms
from tests.unit.results import test_newcomers as newcomers


def said(home: Path, metric: str = "accuracy") -> list[str]:
    return headline(collect([home]), metric, "last")


def test_who_wins_by_how_much_and_at_which_cost(tmp_path: Path) -> None:
    for seed in range(3):
        alarms.write(tmp_path, "local", seed, {0: 0.5, 1: 0.52, 2: 0.51})
        alarms.write(tmp_path, "fedavg", seed, {0: 0.7, 1: 0.73, 2: 0.7}, joules=[250.0])
    best, against = said(tmp_path)
    assert best == (
        "fedavg has the best mean test accuracy of 0.710 (always the most frequent class: 0.367), "
        "for 0.0 MB in all, 2.00 s per round and 250 J per round by the device clock."
    )
    assert against.startswith(
        "Against training alone (local: 0.510, 0.0 MB in all and 2.00 s per round) that is +0.200 "
        "(95 % interval +0.1"
    )
    assert against.endswith("better for 3 of 3 clients): better than local (p < 0.01).")


def test_two_seeds_conclude_nothing(tmp_path: Path) -> None:
    for seed in range(2):
        alarms.write(tmp_path, "local", seed, {0: 0.5, 1: 0.52, 2: 0.51})
        alarms.write(tmp_path, "fedavg", seed, {0: 0.7, 1: 0.73, 2: 0.7})
    assert said(tmp_path)[1].endswith(
        "is +0.200 (better for 3 of 3 clients): 2 seeds conclude nothing."
    )
    alarms.write(tmp_path / "one", "local", 0, {0: 0.5})
    alarms.write(tmp_path / "one", "fedavg", 0, {0: 0.7})
    assert said(tmp_path / "one")[1].endswith(
        "(better for 1 of 1 clients): 1 seed concludes nothing."
    )


def test_training_alone_can_win(tmp_path: Path) -> None:
    for seed in range(3):
        alarms.write(tmp_path, "local", seed, {0: 0.7, 1: 0.7, 2: 0.7})
        alarms.write(tmp_path, "fedavg", seed, {0: 0.71, 1: 0.66, 2: 0.7})
    best, against = said(tmp_path)
    assert best.startswith("local has the best")
    assert against.startswith("Against it, fedavg, the best of the others, is at -0.010 (95 % ")
    assert "better for 1 of 3 clients" in against


def test_a_single_method_and_errors(tmp_path: Path) -> None:
    """Where smaller is better, and without classes."""
    for seed in range(3):
        folders.write(tmp_path / f"a{seed}", "fedavg", seed, {"test.mae": [{0: 0.5}]})
    assert said(tmp_path, "mae") == [
        "fedavg has a mean test mae of 0.500, for 0.0 MB in all and 2.00 s per round."
    ]
    for seed in range(3):
        folders.write(tmp_path / f"b{seed}", "local", seed, {"test.mae": [{0: 0.7}]})
    best, against = said(tmp_path, "mae")
    assert best.startswith("fedavg has the lowest mean test mae of 0.500")
    assert "that is -0.200" in against
    assert "better than local" in against


def test_what_has_no_score_has_no_sentence(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "fedavg", 0, {"test.accuracy": [{0: math.nan}]})
    assert said(tmp_path) == []


def test_newcomers_have_a_sentence(tmp_path: Path) -> None:
    newcomers.write(tmp_path)
    *_, last = said(tmp_path)
    assert last == (
        "For the 2 newcomers fedavg is best, with 0.625 against 0.188 of always the most frequent "
        "class; local has no model for them."
    )
    assert "for the members" in said(tmp_path)[0]


def test_a_grid_is_averaged(tmp_path: Path) -> None:
    for level, seed in product(("low", "high"), range(3)):
        gain = 0.1 if level == "low" else 0.3
        for method, score in (("local", 0.5), ("fedavg", 0.5 + gain)):
            scores = dict.fromkeys(range(3), score)
            alarms.write(tmp_path, method, seed, scores, cell={"H": level})
    best, against = said(tmp_path)
    assert "accuracy of 0.700, averaged over cells (always" in best
    assert "that is +0.200 (95 % interval +0.200 to +0.200, better for 3 of 3 clients)" in against


def test_it_comes_first_everywhere(tmp_path: Path) -> None:
    newcomers.write(tmp_path)
    runs = collect([tmp_path])
    first = headline(runs, "accuracy", "last")
    text = " ".join(first)
    with out.capture() as printed:
        out.print(results(runs, "accuracy"))
    assert " ".join(printed.get().split()).startswith(text)
    page = render(runs, "accuracy", "t")
    for sentence in first:
        assert f"<p class='lead'>{sentence}</p>" in page
    assert page.index(first[-1]) < page.index("<nav") < page.index("<h2")
    assert " ".join(as_json(runs, "accuracy")["summary"]) == text
