"""The report: one file, well formed, without scripts or outside addresses."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from communis.cli import main
from communis.compare import collect
from communis.report.page import render
from communis.report.svg import Curve, curves, ticks


class Balanced(HTMLParser):
    """Checks that every tag is closed."""

    void = ("meta", "br", "line", "circle", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.void

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real comparison of two methods, two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    arguments = ["compare", "fedavg", "local", "--on", "synthetic", "--seeds", "2", "--quiet"]
    arguments += ["--into", str(folder), "--name", "c", "--set", "run.rounds=3"]
    arguments += ["--set", "run.workers=1", "--set", "data.windows=20", "--set", "run.eval_every=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["communis", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0
    return folder / "c"


def test_the_report_is_one_well_formed_file(home: Path) -> None:
    text = (home / "report.html").read_text("utf-8")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.rows > 20
    assert text.count("<svg") == 3
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    for word in ("fedavg", "local", "weakest", "m0 alone", "within the spread", "seed"):
        assert word in text


def test_names_are_escaped(home: Path) -> None:
    text = render(collect([home]), "accuracy", "<b>&")
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text


def test_curves_without_points_say_so() -> None:
    assert "nothing was evaluated" in curves([], "Title", "x", "y")


def test_a_single_point_is_drawn() -> None:
    text = curves([Curve("one", "#000", [1.0], [0.5], [0.5], [0.5])], "t", "x", "y")
    assert "<circle" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.41, 0.87), (-3, 1e6), (5, 5), (0, 0), (1e-9, 2e-9)]
)
def test_ticks_span_the_range_with_round_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low + 1e-12
    assert found[-1] >= high - 1e-12
    assert 2 <= len(found) <= 8
    steps = {round(b - a, 12) for a, b in pairwise(found)}
    assert math.isclose(min(steps), max(steps), rel_tol=1e-6)
