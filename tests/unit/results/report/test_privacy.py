"""What reports, tables and programs are told of privacy."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from communis.cli import privacy as cli_privacy
from communis.cli.terminal import as_json, out, results
from communis.core.extras import EXTRAS
from communis.results import privacy as promises
from communis.results.compare import collect
from communis.results.report import privacy
from communis.results.report.page import render
from communis.results.wording import privacy as wording
from communis.run.folder import strict
from tests.unit import folders
from tests.unit.results.report.test_page import lines_of
from tests.unit.results.report.test_report import Balanced
from tests.unit.results.test_verdict import CLEAR, W, central, paid, write

TITLE = "What left the clients, and is it private?"
LEVELS = {"none": 0.0, "weak": 0.6, "strong": 0.2}


def grid(home: Path) -> list[Any]:
    """Two methods without noise, with some and with more; scores fall with it."""
    for level, mu in LEVELS.items():
        for method, best in (("alpha", 0.8), ("beta", 0.6)):
            for seed in range(2):
                write(
                    home / f"{level}{method}{seed}",
                    "local" if mu else "none",
                    [paid(mu, 0, 1) if mu else {0: {}}] * 2,
                    method=method,
                    seed=seed,
                    score=best - (0.1 / mu if mu else 0) + 0.02 * seed,
                    cell={"noise": level},
                    tensors=[W if mu else CLEAR],
                    **({"noise": 2 / mu} if mu else {}),
                )
    for path in home.rglob("config.toml"):  # the order of the file; no other setting differs
        text = re.sub(r"\[fleet\]\nlevels = .*\n", "", path.read_text())
        path.write_text(f"{text}[levels]\nnoise = {json.dumps(list(LEVELS))}\n")
    return collect([home])


def said(runs: list[Any]) -> str:
    with out.capture() as text:
        out.print(results(runs, "accuracy", quiet=True))
    return " ".join(text.get().split())


def test_runs_without_privacy_take_one_line(tmp_path: Path) -> None:
    for method in ("alpha", "beta"):
        write(tmp_path / method, "none", [{}], tensors=[CLEAR], method=method)
    runs = collect([tmp_path])
    line = "privacy: not DP: everything left in clear (communis privacy verdict RUN)"
    assert wording.lines(runs) == [line]
    assert line in said(runs)
    text = render(runs, "accuracy", "t")
    assert text.count(TITLE) == 1
    assert ["alpha, beta", "not DP: everything left in clear"] in lines_of(text)
    assert ["w", "head", "2", "1,234", "no: sent in clear"] in lines_of(text)
    assert "epsilon" not in text[text.index(TITLE) :].partition("What was run")[0]


def test_methods_that_share_a_verdict_are_named_together(tmp_path: Path) -> None:
    for method in ("alpha", "beta"):
        write(tmp_path / method, "none", [{}], tensors=[CLEAR], method=method)
    folders.write(tmp_path / "old", "gamma", 0, {"test.accuracy": [{0: 0.5}]})
    first, second = wording.lines(collect([tmp_path]))
    assert first == "privacy: alpha, beta: not DP: everything left in clear"
    assert second.startswith("privacy: gamma: not DP: no record of privacy")


def test_a_grid_shows_what_privacy_costs(tmp_path: Path) -> None:
    runs = grid(tmp_path)
    text = privacy.section(runs, "accuracy", "last")
    heads, *body = lines_of(text)[:7]
    assert heads[:5] == ["method", "cell", "mode", "verdict", "test accuracy"]
    assert [line[:2] for line in body] == [
        [method, f"noise {level}"] for level in LEVELS for method in ("alpha", "beta")
    ]
    first, weak, strong = body[0], body[2], body[4]
    assert first[2:6] == ["none", "not DP", "0.810 ± 0.014", "-"]
    assert "everything left in clear" in first[6]
    assert re.fullmatch(r"epsilon [\d.]+ at delta 1e-05", weak[3])
    assert weak[5] == "-0.167 ± 0.000\u00a0?"
    assert strong[5] == "-0.500 ± 0.000\u00a0?"
    assert float(weak[3].split()[1]) > float(strong[3].split()[1])
    assert "of the same seed and settings without it" in text
    assert text.count("Conditions of every promise") == 1
    assert text.count("<svg") == 1
    assert "<title>noise weak: " in text  # both methods spend the same
    lines = wording.lines(runs)
    assert lines[0] == "privacy: noise none: not DP: everything left in clear"
    assert lines[1].startswith("privacy: noise weak: epsilon ")
    assert len(lines) == 3


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    page = render(grid(tmp_path), "accuracy", "t")
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "nan" not in re.sub("<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert page.count(TITLE) == 1


def test_names_are_escaped(tmp_path: Path) -> None:
    bad = W | {"part": "<b>", "covered": False, "why": "a < b"}
    write(tmp_path, "local", [paid(0.3, 0)], noise=1.0, tensors=[bad], method="<i>")
    text = privacy.section(collect([tmp_path]), "accuracy", "last")
    for raw in ("<b>", "a < b", "<i>"):
        assert raw not in text
    assert "a &lt; b" in text


def test_without_a_run_to_compare_with_there_is_no_price(tmp_path: Path) -> None:
    write(tmp_path / "a", "local", [paid(0.3, 0)], noise=1.0, fleet="models = [0]")
    text = privacy.section(collect([tmp_path]), "accuracy", "last")
    assert "what privacy" not in text
    write(tmp_path / "b", "none", [{}], tensors=[CLEAR], fleet="models = [1]")  # another fleet
    write(tmp_path / "c", "none", [{}], tensors=[CLEAR], seed=1)
    runs = collect([tmp_path])
    assert "what privacy" not in privacy.section(runs, "accuracy", "last")
    write(tmp_path / "d", "none", [{}], tensors=[CLEAR])
    private = next(run for run in collect([tmp_path]) if run.path.name == "a")
    base = promises.unprotected(private, collect([tmp_path]))
    assert base is not None
    assert base.path.name == "d"


def test_seeds_are_only_as_good_as_the_weakest(tmp_path: Path) -> None:
    write(tmp_path / "a", "local", [paid(0.3, 0)], noise=1.0)
    write(tmp_path / "b", "local", [paid(0.3, 0)], noise=1.0, seed=1, leaks=["it leaks"])
    (point,) = promises.points(collect([tmp_path]))
    assert point.verdict.line == "not DP: it leaks"
    assert "<svg" not in privacy.section(collect([tmp_path]), "accuracy", "last")


def test_the_report_is_written_without_the_accountant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        EXTRAS, "privacy", replace(EXTRAS["privacy"], module="there_is_no_such_module")
    )
    central(tmp_path, 2, 4.0)
    text = render(collect([tmp_path]), "accuracy", "t")
    assert "needs the extra privacy: pip install" in text


def test_programs_are_told_too(tmp_path: Path) -> None:
    write(tmp_path / "a", "local", [paid(0.3, 0, 1)], noise=1.0, method="alpha")
    write(tmp_path / "b", "none", [{}], tensors=[CLEAR], method="beta")
    found = json.loads(json.dumps(strict(as_json(collect([tmp_path]), "accuracy"))))["privacy"]
    alpha, beta = found
    assert (alpha["method"], alpha["seed"], alpha["private"]) == ("alpha", 0, True)
    assert alpha["epsilon"] > 0
    assert alpha["rounds"] == {"planned": 1, "done": 1, "most": 1, "median": 1.0}
    assert alpha["table"][0]["numbers"] == 1234
    assert (beta["private"], beta["epsilon"]) == (False, None)
    assert beta["reasons"] == ["everything left in clear"]
    assert alpha["per_client"] == []


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli_privacy.app(["verdict", *arguments])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = [paid(0.3, 0, 1), paid(0.3, 0)]
    write(tmp_path / "a", "local", log, noise=1.0, method="alpha")
    write(tmp_path / "b", "none", [{}], tensors=[CLEAR], method="beta")
    text = command(capsys, str(tmp_path))
    assert "alpha, seed 0\nepsilon " in text
    assert re.search(r"^adjacency +one client's data replaced by any other", text, re.M)
    assert re.search(r"^w +head +2 +1,234 +yes", text, re.M)
    assert re.search(r"^w +head +2 +1,234 +sent in clear", text, re.M)
    assert text.count("condition: ") == 7
    assert "why not: everything left in clear" in text
    alpha, beta = map(json.loads, command(capsys, str(tmp_path), "--json").splitlines())
    assert beta["per_client"] == []
    first, second = alpha["per_client"]
    assert (first["rounds"], second["rounds"]) == (2, 1)
    assert first["epsilon_by_round"]["2"] == first["epsilon"] == alpha["epsilon"]
    assert first["epsilon_by_round"]["1"] == second["epsilon"]
