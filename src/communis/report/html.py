"""The pieces that pages are made of. Cells of tables are HTML: callers escape names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

import pandas as pd

STYLE = """
:root { color-scheme: light dark; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --soft: #94a3b8; --line: #334155; --paper: #0f172a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1320px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.note { color: var(--soft); max-width: 75ch; }
.warning { border-left: 4px solid #dc2626; padding: .4rem .8rem; max-width: 75ch; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-bottom: .8rem; }
th, td { padding: .28rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr)); }
.large { max-width: 840px; }
.row { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; }
.row figure { margin: 0; max-width: 100%; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .title { font-weight: 600; fill: var(--ink); } svg .grid { stroke: var(--line); }
.maps svg { width: auto; max-width: 100%; } .maps svg text { font: 11px monospace; }
img { image-rendering: pixelated; }
.legend span { white-space: nowrap; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
details { margin: .4rem 0; } summary { cursor: pointer; }
details.cell { border-left: 3px solid var(--line); padding-left: 1rem; }
details.cell > summary { font-weight: 600; }
pre { background: color-mix(in srgb, var(--line) 45%, transparent); padding: .8rem;
  overflow-x: auto; font-size: 13px; }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def note(text: str) -> str:
    return f"<p class='note'>{escape(text)}</p>"


def details(summary: str, *parts: str, kind: str = "") -> str:
    """What is shown when it is asked for."""
    inside = "\n".join(parts)
    return f"<details class='{kind}'><summary>{escape(summary)}</summary>{inside}</details>"


def unfolded(parts: Mapping[str, str]) -> str:
    """The first part is shown, the others when they are asked for."""
    shown = [
        details(title, part) if i else f"<h3>{escape(title)}</h3>{part}"
        for i, (title, part) in enumerate(parts.items())
    ]
    return "\n".join(shown)


def dot(colour: str) -> str:
    return f"<span class='dot' style='background:{colour}'></span>"


def legend(colours: Mapping[str, str]) -> str:
    dots = (f"<span>{dot(shade)}{escape(name)}</span>&emsp;" for name, shade in colours.items())
    return f"<p class='legend'>{' '.join(dots)}</p>"


def table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], text: Collection[int] = (0,)
) -> str:
    """text: the columns that are aligned to the left."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = [" class='text'" if i in text else "" for i in range(len(cells))]
        inside = (f"<{tag}{k}>{cell}</{tag}>" for k, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", cells) for cells in lines)
    return f"<div class='scroll'><table>{line('th', heads)}{body}</table></div>"


def shaded(
    values: pd.DataFrame,
    corner: str,
    span: tuple[float, float] | None = None,
    form: str = ".3f",
) -> str:
    """A table of numbers whose cells are shaded by value; span: the values of the palest and the
    darkest shade, if not the table's own; form: how numbers are written."""
    if values.empty:
        return note("Nothing was evaluated.")
    low, high = span or (float(values.min().min()), float(values.max().max()))

    def cell(value: float) -> str:
        if not math.isfinite(value):
            return "<td>-</td>"
        share = (value - low) / (high - low) if high > low else 0.5
        tint = f"color-mix(in srgb, #2563eb {4 + 36 * share:.0f}%, transparent)"
        return f"<td style='background:{tint}'>{value:{form}}</td>"

    names = (escape(str(c)).replace("\n", "<br>") for c in values.columns)
    heads = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join(
        f"<tr><td>{escape(str(name))}</td>{''.join(cell(float(v)) for v in line)}</tr>"
        for name, line in zip(values.index, values.to_numpy(), strict=True)
    )
    grid = f"<table><tr><th>{escape(corner)}</th>{heads}</tr>{lines}</table>"
    return f"<div class='scroll'>{grid}</div>"
