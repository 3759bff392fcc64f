"""The numbers and figures of a report as files for papers: CSV, LaTeX and SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from communis.core import disk
from communis.core.metrics import better
from communis.results.experiment import Results
from communis.results.report import page

NAMESPACE = "http://www.w3.org/2000/svg"
# The look of a figure by itself; in a page it comes from the page's style.
STYLE = """
:root { --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --paper: #fff; }
text { font: 12px sans-serif; fill: #64748b; } .title { font-weight: 600; fill: #1e293b; }
.grid { stroke: #e2e8f0; } .mark { stroke: #64748b; } .name { fill: #1e293b; }
.end { font-weight: 600; }
"""
LONGEST = 100  # letters of a file's name
SVG = re.compile(r"[<]svg\b.*?[<]/svg>", re.DOTALL)
# Characters that names may hold and XML may not.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after the end of a line it would begin an argument
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Writes every data frame of the results that has rows, as NAME.csv."""
    disk.make_folder(folder)
    paths = []
    for name, frame in results.frames().items():
        path = folder / f"{name}.csv"
        disk.write_file(path, frame.to_csv(index=False).encode("utf-8", "backslashreplace"))
        paths.append(path)
    return paths


def write_latex(results: Results, path: Path) -> Path:
    """Writes the table of scores and costs; it takes \\usepackage{booktabs}."""
    disk.make_folder(path.parent)
    disk.write_file(path, latex(results).encode("utf-8", "backslashreplace"))
    return path


def write_figures(results: Results, folder: Path, title: str) -> list[Path]:
    """Writes every figure of the report that has a title, as an SVG file of that name."""
    text = page.render(results.read_runs, results.metric, title, results.select, results.targets)
    disk.make_folder(folder)
    paths = []
    for name, figure in _figures(str(text)):
        numbered = (f"{name[:LONGEST]}-{number}.svg" for number in count(2))
        names = chain([f"{name[:LONGEST]}.svg"], numbered)
        path = next(folder / name for name in names if folder / name not in paths)
        disk.write_file(path, ElementTree.tostring(figure, "utf-8"))
        paths.append(path)
    return paths


def latex(results: Results) -> str:
    """The scores of every method with their spread over seeds, and what they cost. The best mean
    of each score is bold, for every cell of a grid by itself."""
    means = results.scores.query("over_clients == 'mean'").to_dict("records")
    metrics = list(dict.fromkeys([results.metric, *(row["metric"] for row in means)]))
    costs = {(row["cell"], row["method"]): row for row in results.costs.to_dict("records")}
    found = {(row["cell"], row["method"], row["metric"]): row for row in means}
    best = _best(means)
    grid = any(run.place for run in results.read_runs)
    rows = []
    for cell, method in dict.fromkeys((row["cell"], row["method"]) for row in means):
        values = [
            _score(found.get((cell, method, metric)), best.get((cell, metric)) == method)
            for metric in metrics
        ]
        names = [cell, method] if grid else [method]
        rows.append([*map(escaped, names), *values, *_cost(costs.get((cell, method)))])
    texts = ["cell", "method"] if grid else ["method"]
    numbers = [*(metric.replace("_", " ") for metric in metrics), "MB in all", "s per round"]
    seeds = sorted({run.seed for run in results.read_runs})
    lines = [
        "% Mean and standard deviation over seeds; the best mean is bold. Needs booktabs.",
        f"% Seeds {', '.join(map(str, seeds))}; round: {results.select}.",
        rf"\begin{{tabular}}{{{'l' * len(texts)}{'r' * len(numbers)}}}",
        r"\toprule",
        _line(map(escaped, [*texts, *numbers])),
        r"\midrule",
        *map(_line, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """The text as LaTeX shows it, on one line."""
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def _best(means: Sequence[Mapping[Hashable, Any]]) -> dict[tuple[str, str], str]:
    """The method with the best mean, by cell and score."""
    best: dict[tuple[str, str], Mapping[Hashable, Any]] = {}
    for row in means:
        key = row["cell"], row["metric"]
        sign = better(row["metric"])
        if math.isfinite(row["mean"]) and (
            key not in best or sign * row["mean"] > sign * best[key]["mean"]
        ):
            best[key] = row
    return {key: row["method"] for key, row in best.items()}


def _score(row: Mapping[Hashable, Any] | None, bold: bool) -> str:
    if row is None or math.isnan(row["mean"]):
        return "--"
    value = rf"\mathbf{{{row['mean']:.3f}}}" if bold else f"{row['mean']:.3f}"
    spread = "" if math.isnan(row["spread"]) else rf" \pm {row['spread']:.3f}"
    return f"${value}{spread}$"


def _cost(row: Mapping[Hashable, Any] | None) -> list[str]:
    if row is None:
        return ["--", "--"]
    return [f"{row['bytes_total'] / 1e6:,.1f}", f"{row['seconds_per_round']:.2f}"]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _figures(text: str) -> Iterator[tuple[str, Element]]:
    """Yields the figures of a page as documents, each with its name for a file."""
    ElementTree.register_namespace("", NAMESPACE)
    for found in SVG.finditer(NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)):
        figure = ElementTree.fromstring(found[0])
        title = next((e.text for e in figure.iter("text") if e.get("class") == "title"), None)
        name = "-".join(re.findall("[a-z0-9]+", (title or "").lower()))
        if not name:
            continue
        for part in figure.iter():
            part.tag = f"{{{NAMESPACE}}}{part.tag}"
        style = Element(f"{{{NAMESPACE}}}style")
        style.text = STYLE
        figure.insert(0, style)
        yield name, figure
