"""The report of one or more runs as a single HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import pandas as pd

from communis.compare import Finished, Row, rows
from communis.report.svg import Curve, colour, curves
from communis.report.words import how_to_read, kilobytes, number, scope, versus, warnings
from communis.runfolder import replace_file

STYLE = """
:root { color-scheme: light dark; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --soft: #94a3b8; --line: #334155; --paper: #0f172a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1320px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.note { color: var(--soft); max-width: 75ch; }
.warning { border-left: 4px solid #dc2626; padding: .4rem .8rem; max-width: 75ch; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .title { font-weight: 600; fill: var(--ink); } svg .grid { stroke: var(--line); }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
pre { background: color-mix(in srgb, var(--line) 45%, transparent); padding: .8rem;
  overflow-x: auto; font-size: 13px; }
"""


def write(runs: Sequence[Finished], path: Path, metric: str, title: str) -> Path:
    """The report is at `path`."""
    replace_file(path, render(runs, metric, title).encode())
    return path


def render(runs: Sequence[Finished], metric: str, title: str) -> str:
    table = rows(runs, metric)
    colours = {row.method: colour(i) for i, row in enumerate(table)}
    label = metric.replace("_", " ")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='note'>{escape(scope(runs))}</p>",
        *(f"<p class='warning'>{escape(text)}</p>" for text in warnings(runs)),
        "<h2>Which method serves this fleet, at which cost?</h2>",
        _summary(table, metric, colours),
        _verdicts(table),
        f"<p class='note'>{escape(how_to_read(table, metric))}</p>",
        "<h2>How they got there</h2>",
        _legend(colours),
        "<div class='charts'>",
        curves(_by_round(runs, metric, colours), f"Test {label} by round", "round", label),
        curves(
            _by_bytes(runs, metric, colours),
            f"Test {label} by traffic",
            "MB sent and received by the whole fleet",
            label,
        ),
        curves(_losses(runs, colours), "Training loss by round", "round", "loss"),
        "</div>",
        f"<h2>Test {escape(label)} of every client</h2>",
        _grid(_by_client(runs, metric, [r.method for r in table]), "client: sensors"),
        f"<h2>Test {escape(label)} by the sensors that were there</h2>",
        "<p class='note'>Each client is scored with all its sensors and with each of them alone; "
        "means over the clients that own them.</p>",
        _grid(_by_subset(runs, metric, [r.method for r in table]), "sensors"),
        _classes(runs, [r.method for r in table]),
        "<h2>What was run</h2>",
        _configurations(runs),
    ]
    body = "\n".join(parts)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )


def _summary(table: Sequence[Row], metric: str, colours: Mapping[str, str]) -> str:
    shown = [metric, *(m for m in table[0].scores if m != metric)]
    heads = [
        "<th class='text'>method</th>",
        *(f"<th>{escape(m.replace('_', ' '))}</th>" for m in shown),
        "<th>weakest<br>client</th><th>KB<br>up</th><th>KB<br>down</th><th>MB<br>in all</th>"
        "<th>s per<br>round</th><th>refused</th>",
    ]
    lines = [
        f"<tr><td><span class='dot' style='background:{colours[row.method]}'></span>"
        f"{escape(row.method)}</td>"
        + "".join(f"<td>{number(row.scores[m])}</td>" for m in shown)
        + f"<td>{number(row.weakest)}</td><td>{kilobytes(row.bytes_up)}</td>"
        f"<td>{kilobytes(row.bytes_down)}</td><td>{row.total_bytes / 1e6:,.1f}</td>"
        f"<td>{row.seconds:.2f}</td><td>{row.refused}</td></tr>"
        for row in table
    ]
    return f"<div class='scroll'><table><tr>{''.join(heads)}</tr>{''.join(lines)}</table></div>"


def _verdicts(table: Sequence[Row]) -> str:
    if len(table) < 2:
        return ""
    lines = "".join(
        f"<tr><td>{escape(row.method)}</td><td class='text'>{escape(versus(row))}</td></tr>"
        for row in table[1:]
    )
    head = (
        f"<th class='text'>against {escape(table[0].method)}</th><th class='text'>difference</th>"
    )
    return f"<br><table><tr>{head}</tr>{lines}</table>"


def _legend(colours: Mapping[str, str]) -> str:
    dots = (
        f"<span class='dot' style='background:{shade}'></span>{escape(name)}&emsp;"
        for name, shade in colours.items()
    )
    note = "Lines are means over seeds, bands reach from the lowest to the highest."
    return f"<p>{''.join(dots)}</p><p class='note'>{note}</p>"


def _groups(runs: Sequence[Finished], colours: Mapping[str, str]) -> dict[str, list[Finished]]:
    return {name: [run for run in runs if run.method == name] for name in colours}


def _band(name: str, shade: str, x: Sequence[float], ys: Sequence[Sequence[float]]) -> Curve:
    """The mean of several runs with the span between the lowest and the highest."""
    length = min([len(x), *map(len, ys)], default=0)
    columns = [[y[i] for y in ys] for i in range(length)]
    keep = [i for i, c in enumerate(columns) if all(map(math.isfinite, c))]
    return Curve(
        name,
        shade,
        [x[i] for i in keep],
        [fmean(columns[i]) for i in keep],
        [min(columns[i]) for i in keep],
        [max(columns[i]) for i in keep],
    )


def _by_round(runs: Sequence[Finished], metric: str, colours: Mapping[str, str]) -> list[Curve]:
    return [
        _band(
            name,
            colours[name],
            [float(r.round) for r in group[0].evaluated],
            [[r.scores[f"test.{metric}"] for r in run.evaluated] for run in group],
        )
        for name, group in _groups(runs, colours).items()
    ]


def _by_bytes(runs: Sequence[Finished], metric: str, colours: Mapping[str, str]) -> list[Curve]:
    lines = []
    for name, group in _groups(runs, colours).items():
        traffic = accumulate(r.bytes_up + r.bytes_down for r in group[0].records)
        megabytes = dict(zip((r.round for r in group[0].records), traffic, strict=True))
        x = [megabytes[r.round] / 1e6 for r in group[0].evaluated]
        ys = [[r.scores[f"test.{metric}"] for r in run.evaluated] for run in group]
        lines.append(_band(name, colours[name], x, ys))
    return lines


def _losses(runs: Sequence[Finished], colours: Mapping[str, str]) -> list[Curve]:
    return [
        _band(
            name,
            colours[name],
            [float(r.round) for r in group[0].records],
            [[r.loss for r in run.records] for run in group],
        )
        for name, group in _groups(runs, colours).items()
    ]


def _final(runs: Sequence[Finished], metric: str) -> pd.DataFrame:
    """The test scores of the last evaluated round of every run, with the method's name."""
    parts = []
    for run in runs:
        t = run.scores
        last = t["round"] == t["round"].max()
        here = t[last & (t["split"] == "test") & (t["metric"] == metric)]
        parts.append(here.assign(method=run.method, seed=run.seed))
    return pd.concat(parts) if parts else pd.DataFrame()


def _by_client(runs: Sequence[Finished], metric: str, methods: Sequence[str]) -> pd.DataFrame:
    """Rows are clients with their sensors. Roles are drawn by seed, so there can be several."""
    table = _final(runs, metric)
    table = table[(table["class"] == -1) & table["own"]]
    wide = table.pivot_table(index="client", columns="method", values="value")[list(methods)]
    sensors = {c: ", ".join(sorted(set(g["subset"]))) for c, g in table.groupby("client")}
    wide.index = pd.Index([f"{client}: {sensors[client]}" for client in wide.index])
    return wide


def _by_subset(runs: Sequence[Finished], metric: str, methods: Sequence[str]) -> pd.DataFrame:
    table = _final(runs, metric)
    table = table[table["class"] == -1]
    label = table["subset"] + table["own"].map({True: " (all it has)", False: " alone"})
    table = table.assign(sensors=label)
    return table.pivot_table(index="sensors", columns="method", values="value")[list(methods)]


def _classes(runs: Sequence[Finished], methods: Sequence[str]) -> str:
    table = _final(runs, "f1")
    if table.empty:
        return ""
    table = table[table["own"]]
    wide = table.pivot_table(index="class", columns="method", values="value")[list(methods)]
    names = dict(enumerate(runs[0].fleet["labels"]))
    wide.index = pd.Index([names.get(int(c), str(c)) for c in wide.index])
    return "<h2>Test F1 of every class</h2>" + _grid(wide, "class")


def _grid(table: pd.DataFrame, corner: str) -> str:
    """A table of numbers whose cells are shaded by value."""
    if table.empty:
        return "<p class='note'>Nothing was evaluated.</p>"
    low, high = float(table.min().min()), float(table.max().max())

    def cell(value: float) -> str:
        if not math.isfinite(value):
            return "<td>-</td>"
        share = (value - low) / (high - low) if high > low else 0.5
        tint = f"color-mix(in srgb, #2563eb {4 + 36 * share:.0f}%, transparent)"
        return f"<td style='background:{tint}'>{value:.3f}</td>"

    heads = "".join(f"<th>{escape(str(c))}</th>" for c in table.columns)
    lines = "".join(
        f"<tr><td>{escape(str(name))}</td>{''.join(cell(float(v)) for v in values)}</tr>"
        for name, values in zip(table.index, table.to_numpy(), strict=True)
    )
    grid = f"<table><tr><th>{escape(corner)}</th>{heads}</tr>{lines}</table>"
    return f"<div class='scroll'>{grid}</div>"


def _configurations(runs: Sequence[Finished]) -> str:
    parts = []
    seen: list[str] = []
    for run in runs:
        if run.method not in seen:
            seen.append(run.method)
            text = (run.path / "config.toml").read_text(encoding="utf-8")
            parts.append(
                f"<details><summary>{escape(run.method)}, seed {run.seed}</summary>"
                f"<pre>{escape(text)}</pre></details>"
            )
    path = runs[0].path / "environment.json"
    if path.exists():
        environment = json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2)
        parts.append(
            f"<details><summary>environment</summary><pre>{escape(environment)}</pre></details>"
        )
    return "".join(parts)
