"""Tables and figures as files for papers."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from typer.testing import CliRunner

from communis.cli.main import app
from communis.results.experiment import Results
from communis.results.report import paper
from tests.unit import folders
from tests.unit.results import test_alarms as alarms

NASTY = "a_b & 50% $x$ #1 {y} ~ ^ <b>"


def three_seeds(home: Path, *names: str) -> Results:
    for seed in range(3):
        for i, name in enumerate(names):
            history = {"test.accuracy": [{0: 0.5}, {0: 0.6 + i / 10 + seed / 100}]}
            folders.write(home / f"{i}-{seed}", name, seed, history)
    return Results.read(home)


def test_every_frame_is_a_csv_file(tmp_path: Path) -> None:
    results = three_seeds(tmp_path / "runs", "fedavg", "local")
    paths = paper.write_tables(results, tmp_path / "new" / "tables")
    assert {path.stem for path in paths} == {*results.frames()}
    scores = pd.read_csv(tmp_path / "new" / "tables" / "scores.csv", keep_default_na=False)
    assert list(scores.columns) == list(results.scores.columns)
    own = results.scores.query("method == 'local' and over_clients == 'mean'")["mean"].iloc[0]
    there = scores.query("method == 'local' and over_clients == 'mean'")["mean"].iloc[0]
    assert float(there) == own


def test_the_table_for_latex(tmp_path: Path) -> None:
    text = paper.latex(three_seeds(tmp_path, "fedavg", "local"))
    assert "% Seeds 0, 1, 2; round: last." in text
    assert r"\begin{tabular}{lrrr}" in text
    assert r"method & accuracy & MB in all & s per round \\" in text
    assert r"fedavg & $0.610 \pm 0.010$ & " in text
    assert r"local & $\mathbf{0.710} \pm 0.010$ & " in text


def test_less_is_better_for_errors(tmp_path: Path) -> None:
    for seed in range(2):
        for name, error in (("fedavg", 1.0), ("local", 2.0)):
            folders.write(tmp_path / f"{name}{seed}", name, seed, {"test.mae": [{0: error}]})
    text = paper.latex(Results.read(tmp_path))
    assert r"fedavg & $\mathbf{1.000}" in text


def test_one_seed_has_no_spread_and_a_diverged_method_no_score(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    folders.write(tmp_path / "b", "local", 0, {"test.accuracy": [{0: float("nan")}]})
    text = paper.latex(Results.read(tmp_path))
    assert r"fedavg & $\mathbf{0.500}$ & " in text
    assert "local & -- & " in text


def test_names_are_text_in_every_file(tmp_path: Path) -> None:
    results = three_seeds(tmp_path / "runs", NASTY, "local")
    text = paper.latex(results)
    shown = r"a\_b \& 50\% \$x\$ \#1 \{y\} \textasciitilde{} \textasciicircum{} "
    assert shown in text
    assert paper.escaped("\\a\nb") == r"\textbackslash{}a b"
    assert paper.escaped("[1] x[2]") == "{[}1] x{[}2]"
    for path in paper.write_figures(results, tmp_path / "figures", "t"):
        ElementTree.parse(path)
        assert b"<b>" not in path.read_bytes()


def test_every_figure_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = ["F 1", "f-1", "F 1 2", "Long " * 99, "long " * 98]
    figures = [f'<svg><text class="title">{title}</text></svg>' for title in titles]
    monkeypatch.setattr(paper.page, "render", lambda *_: "".join(figures))
    results = three_seeds(tmp_path / "runs", "fedavg")
    paths = paper.write_figures(results, tmp_path / "figures", "t")
    assert [path.name for path in paths[:3]] == ["f-1.svg", "f-1-2.svg", "f-1-2-2.svg"]
    assert {*paths} == {*(tmp_path / "figures").iterdir()}
    assert len(paths) == 5


def test_figures_stand_by_themselves(tmp_path: Path) -> None:
    for seed in range(3):
        alarms.write(tmp_path / "runs", "local", seed, {0: 0.5, 1: 0.52, 2: 0.51})
        alarms.write(tmp_path / "runs", "fedavg", seed, {0: 0.7, 1: 0.73, 2: 0.7})
    paths = paper.write_figures(Results.read(tmp_path / "runs"), tmp_path / "figures", "t")
    names = [path.name for path in paths]
    assert "test-accuracy.svg" in names
    assert len(names) == len(set(names))
    for path in paths:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        text = path.read_text("utf-8")
        assert not re.search(r"\b(href|src|url)\b", text.replace(paper.NAMESPACE, ""))


def test_from_the_command_line(tmp_path: Path) -> None:
    three_seeds(tmp_path / "runs", "fedavg", "local")
    words = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]
    more = ["--csv", str(tmp_path / "t"), "--latex", str(tmp_path / "t.tex")]
    result = CliRunner().invoke(app, [*words, *more, "--figures", str(tmp_path / "f")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t" / "costs.csv").exists()
    assert (tmp_path / "t.tex").read_text("utf-8").startswith("% Mean")
    assert list((tmp_path / "f").glob("*.svg"))
