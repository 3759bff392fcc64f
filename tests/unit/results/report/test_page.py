"""Pages of runs that went wrong, were interrupted or are many, on run folders made by hand."""

from __future__ import annotations

import math
import re
from itertools import pairwise, product
from pathlib import Path

import pytest

from communis import CommunisError
from communis.cli.terminal import as_json, out, results
from communis.results.compare import collect
from communis.results.report import costs, views
from communis.results.report.html import legend
from communis.results.report.page import render
from communis.results.report.svg import (
    BOTTOM,
    HEIGHT,
    LINE,
    Curve,
    Whisker,
    colour,
    curves,
    ticks,
    whiskers,
)
from communis.results.wording.warnings import warnings
from tests.unit import folders


def write(path: Path, method: str, seed: int, value: float, **about: object) -> Path:
    history = {"test.accuracy": [{0: value}], "test.f1.0": [{0: value}]}
    return folders.write(path / f"{method}{seed}", method, seed, history, **about)  # type: ignore[arg-type]


def lines_of(text: str) -> list[list[str]]:
    """The cells of every line of a table."""
    return [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", one) for one in re.findall("<tr>(.*?)</tr>", text)
    ]


@pytest.mark.parametrize("calm", [0.5, math.nan])
def test_a_method_without_a_finite_score_has_an_empty_column(tmp_path: Path, calm: float) -> None:
    write(tmp_path, "calm", 0, calm)
    write(tmp_path, "wild", 0, math.nan)
    text = render(collect([tmp_path]), "accuracy", "t")
    assert "nan" not in text
    assert "Test F1 of every class" in text
    if math.isfinite(calm):
        assert ["acc (all it has)", "0.500", "-"] in lines_of(text)
        assert ["0", "0.500", "-"] in lines_of(text)
        assert "<td class='text'>best mean</td>" in text
    else:
        assert "<td class='text'>best mean</td>" not in text


def test_an_interrupted_comparison_has_a_page(tmp_path: Path) -> None:
    write(tmp_path, "alpha", 0, 0.5)
    folders.write(tmp_path / "beta", "beta", 0, {"test.accuracy": [{}]})
    runs = collect([tmp_path])
    text = render(runs, "accuracy", "t")
    assert "1 of 2 runs has not been evaluated yet" in text
    assert "diverged" not in text
    assert ["beta"] not in [line[:1] for line in lines_of(text)]
    assert "beta, seed 0" in text  # what was run
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    assert "nan" not in said.get()
    assert [row["method"] for row in as_json(runs, "accuracy")["rows"]] == ["alpha"]
    with pytest.raises(CommunisError, match="nothing was evaluated yet"):
        render([run for run in runs if run.method == "beta"], "accuracy", "t")


def test_a_cell_without_scores_does_not_break_a_grid(tmp_path: Path) -> None:
    for level in ("low", "high"):
        write(tmp_path / level, "alpha", 0, 0.5, cell={"H": level})
    folders.write(tmp_path / "new", "alpha", 0, {"test.accuracy": [{}]}, cell={"H": "new"})
    text = render(collect([tmp_path]), "accuracy", "t")
    assert text.count("<details class='cell'>") == 2
    assert "1 of 3 runs" in text


def test_a_method_keeps_its_colour_and_cells_do_not_repeat_the_notes(tmp_path: Path) -> None:
    """The order of the methods is another in every cell."""
    for (level, sign), (method, value) in product(
        (("low", 1), ("high", -1)), (("alpha", 0.1), ("beta", 0.2))
    ):
        write(tmp_path / level, method, 0, 0.5 + sign * value, cell={"H": level})
    text = render(collect([tmp_path]), "accuracy", "t")
    shades = set(re.findall(r"background:(#\w+)'></span>(alpha|beta)", text))
    assert len(shades) == 2
    assert text.count("Scores are means over clients") == 1


def mixed(path: Path, method: str, seed: int, models: str, **about: object) -> Path:
    """A run whose clients have these models, by letter."""
    clients = [{"id": i, "sensors": ["acc"], "model": f"net_{m}"} for i, m in enumerate(models)]
    history = {"test.accuracy": [dict.fromkeys(range(len(models)), 0.5)]}
    fleet = {"clients": clients}
    return folders.write(path / f"{method}{seed}", method, seed, history, fleet=fleet, **about)  # type: ignore[arg-type]


def test_who_averaged_among_the_same_models_only_is_said(tmp_path: Path) -> None:
    for method, settings in (("fedavg", "by_model = true"), ("local", "")):
        mixed(tmp_path / "one", method, 0, "bab", settings=settings)
    runs = collect([tmp_path / "one"])
    text = (
        "fedavg averaged parameters among clients with the same model only: "
        "net_b (clients 0, 2), net_a (client 1)"
    )
    assert warnings(runs) == [text]
    page = render(runs, "accuracy", "t")
    assert f"<p class='warning'>{text}</p>" in page
    lines = lines_of(page)
    assert ["client: sensors; model", "fedavg", "local"] in lines
    assert ["1: acc; net_a", "0.500", "0.500"] in lines
    mixed(tmp_path / "one", "fedprox", 1, "abb", settings="by_model = true")
    assert warnings(collect([tmp_path / "one"])) == [
        "fedavg and fedprox averaged parameters among clients with the same model only; who has "
        "which of net_a and net_b differs by seed or cell"
    ]
    assert ["1: acc; net_a, net_b", "0.500", "0.500", "0.500"] in lines_of(
        render(collect([tmp_path / "one"]), "accuracy", "t")
    )
    mixed(tmp_path / "many", "fedavg", 0, "a" * 13 + "b", settings="by_model = true")
    assert warnings(collect([tmp_path / "many"]))[0].endswith(
        "net_a (13 clients), net_b (client 13)"
    )


def test_what_was_averaged_across_models(tmp_path: Path) -> None:
    """Only where models differ, and by methods that could have done otherwise."""
    mixed(tmp_path / "a", "fedavg", 0, "ab", settings="by_model = false")
    mixed(tmp_path / "b", "local", 0, "ab")
    mixed(tmp_path / "c", "fedper", 0, "aa", settings="by_model = false")
    assert warnings(collect([tmp_path])) == [
        "fedavg averaged across models what these have in common by name, as a head"
    ]


def test_of_one_model_there_is_nothing_to_say(tmp_path: Path) -> None:
    mixed(tmp_path, "fedavg", 0, "aa", settings="by_model = true")
    assert warnings(collect([tmp_path])) == []
    text = render(collect([tmp_path]), "accuracy", "t")
    assert ["0: acc", "0.500"] in lines_of(text)


def test_names_stay_beside_their_dots() -> None:
    text = legend({"a": "#000", "b <c>": "#111"})
    assert text.count("<span><span class='dot'") == 2
    assert "</span>b &lt;c&gt;</span>" in text


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 2), (1, 3), (1, 12), (1, 13), (3, 120)])
def test_rounds_have_whole_ticks(low: int, high: int) -> None:
    found = ticks(low, high, integers=True)
    assert all(x == int(x) for x in found)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 8


def test_the_base_of_overheads_is_found_by_its_method(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, 0.5, variant="plain averaging")
    write(tmp_path, "duet", 0, 0.5, variant="fedavg")  # only called so
    text = costs.section(collect([tmp_path]))
    assert "Overhead against plain averaging" in text
    assert "The line of plain averaging and the private parameters are absolute" in text
    assert [line[0] for line in lines_of(text)] == ["method", "plain averaging", "fedavg"]
    assert lines_of(text)[2][3] == "1.00 x"


def test_measures_have_a_heading_of_their_own(tmp_path: Path) -> None:
    both = {"test.accuracy": [{0: 0.5}], "test.accuracy@other": [{0: 0.6}]}
    folders.write(tmp_path / "a", "alpha", 0, both | {"test.mean@available": [{0: 2.0}]})
    folders.write(
        tmp_path / "b", "beta", 0, {"test.accuracy": [{0: 0.5}], "test.mean@x": [{0: 7.0}]}
    )
    runs = collect([tmp_path])
    text = views.section(runs, "accuracy", "last")
    assert text.index("Other ways to predict") < text.index("What methods measure")
    assert ["beta", "-", "7.000"] in lines_of(text)
    alpha, beta = (views.section([run], "accuracy", "last") for run in runs)
    assert "What methods measure" not in alpha  # the number of sensors alone is no news
    assert "Other ways to predict" not in beta


def test_a_round_that_lacks_the_score_is_a_gap(tmp_path: Path) -> None:
    history = {"test.accuracy": [{}, {0: 0.5}], "test.macro_f1": [{0: 0.4}, {0: 0.4}]}
    folders.write(tmp_path / "a", "alpha", 0, history)
    text = render(collect([tmp_path]), "accuracy", "t")
    assert "<title>alpha: 0.5 at 2</title>" in text
    assert "<title>alpha: 0.4 at 1</title>" not in text


def test_the_contents_link_to_parts_and_what_is_no_score_is_folded(tmp_path: Path) -> None:
    for method, seed in product(("fedavg", "local"), range(3)):
        write(tmp_path, method, seed, 0.5 + 0.1 * (method == "fedavg") + 0.01 * seed)
    text = render(collect([tmp_path]), "accuracy", "t")
    links = re.findall("href='#([^']*)'", text)
    assert links == re.findall("<(?:section|div) id='([^']*)'", text)
    assert links[:2] == ["scores", "round-by-round"]
    assert "newcomers" not in links
    for name in ("clients-sensors-and-classes", "privacy", "settings"):
        assert re.search(f"<details class='part'><summary>[^<]*</summary><div id='{name}'>", text)
    assert "<section id='scores'><h2>" in text


def test_tables_say_what_their_heads_are_of(tmp_path: Path) -> None:
    write(tmp_path, "alpha", 0, 0.5)
    text = render(collect([tmp_path]), "accuracy", "t")
    rows = re.findall("<tr>(.*?)</tr>", text)
    assert rows
    for row in rows:
        assert row.startswith(("<th scope='row'", "<th class='text' scope=", "<th scope='col'"))
    assert "<th>" not in text


def test_line_ends_have_names_and_lines_have_dashes() -> None:
    """One below the other where ends meet; of many lines the legend alone has them."""
    lines = [Curve(f"method {i}", colour(i), [1, 2], [0, 1], [0, 1], [0, 1]) for i in range(3)]
    text = curves(lines, "t", "x", "y")
    downs = [float(y) for y in re.findall(r"y='([\d.]+)' style='[^']*' class='end'", text)]
    assert len(downs) == 3
    assert all(b - a >= LINE - 0.1 for a, b in pairwise(downs))
    assert max(downs) <= HEIGHT - BOTTOM + 4
    assert len(set(re.findall("stroke-dasharray='([^']*)'", text))) == 2  # and one without
    assert "class='end'" not in curves(lines[:1], "t", "x", "y")
    many = [Curve(str(i), colour(i), [1], [0], [0], [0]) for i in range(13)]
    assert "class='end'" not in curves(many, "t", "x", "y")
    assert "a very long nam…</text>" in curves(
        [Curve("a very long name of a method", "#000", [1], [0], [0], [0]), lines[0]], "t", "x", "y"
    )


def test_intervals_are_drawn_where_there_are_some() -> None:
    rows = [
        Whisker("a <b>", "#111", 0.5, 0.4, 0.6, [0.45, 0.55]),
        Whisker("few", "#222", 0.5, math.nan, math.nan),
        Whisker("diverged", "#333", math.nan, math.nan, math.nan),
    ]
    text = whiskers(rows, "t", "score", {"chance": 0.1})
    assert text.count("stroke-width='2'") == 1
    assert text.count("fill='none'") == 2  # rings of seeds
    assert "a &lt;b&gt;" in text
    assert "diverged" not in text
    assert "chance" in text
    assert "nan" not in text
    assert "nothing was evaluated" in whiskers(rows[2:], "t", "score", {})


def test_scores_have_one_scale_of_shades(tmp_path: Path) -> None:
    """The same score has the same shade in the tables of clients and of sensors."""
    for seed, method in product(range(2), ("alpha", "beta")):
        values = {0: 0.25, 1: 0.5 + 0.25 * (method == "beta")}
        folders.write(tmp_path / f"{method}{seed}", method, seed, {"test.accuracy": [values]})
    text = render(collect([tmp_path]), "accuracy", "t")
    shades = {}
    for shade, value in re.findall(r"#2563eb (\d+)%, transparent\)'>([\d.]+)</td>", text):
        shades.setdefault(value, set()).add(shade)
    assert len(shades) > 2
    assert all(len(found) == 1 for found in shades.values())


def test_warnings_call_clients_by_their_names(tmp_path: Path) -> None:
    """A client without a name of its own has its number."""
    clients = [{"id": 0, "name": "anna", "sensors": ["acc"]}, {"id": 1, "sensors": ["acc"]}]
    history = {"test.accuracy": [{1: 0.5}]}
    about = {"clients": clients, "attackers": [0]}
    refused = ((1, "delta/w holds NaN or Inf"),)
    folders.write(tmp_path / "a", "a", 0, history, fleet=about, refused=refused)
    first, second = warnings(collect([tmp_path]))
    assert "round 1, client 1: delta/w" in first
    assert second == "client anna attacks (attack): scores are of the other 1"
