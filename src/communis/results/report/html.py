"""The pieces that pages are made of."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd
from markupsafe import Markup

from communis.core.markup import Content, broken, element, stacked

STYLE = Markup("""
:root { color-scheme: light dark; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --soft: #94a3b8; --line: #334155; --paper: #0f172a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1320px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.lead { font-size: 1.05rem; max-width: 75ch; margin: .5rem 0; }
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
svg .mark { stroke: var(--soft); } svg .name { fill: var(--ink); } svg .end { font-weight: 600; }
nav { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; }
nav a { color: inherit; }
th[scope=row] { color: inherit; font-weight: 400; vertical-align: middle; }
details.part { border-top: 1px solid var(--line); padding: .3rem 0; }
details.part > div { scroll-margin-top: 3rem; }
details.part > summary { font-weight: 600; font-size: 1.1rem; }
details { margin: .4rem 0; } summary { cursor: pointer; }
details.cell { border-left: 3px solid var(--line); padding-left: 1rem; }
details.cell > summary { font-weight: 600; }
pre { background: color-mix(in srgb, var(--line) 45%, transparent); padding: .8rem;
  overflow-x: auto; font-size: 13px; }
@media (max-width: 600px) {
  body { margin: 1rem auto; padding: 0 .8rem; }
  svg text { font-size: 14px; }
  .scroll th:first-child, .scroll td:first-child { position: sticky; left: 0;
    background: var(--paper); white-space: normal; min-width: 5.5rem; max-width: 40vw; } }
@media print { details.part > div { scroll-margin-top: 3rem; }
details.part > summary { display: none; } }
""")


def document(title: str, parts: Iterable[Markup]) -> Markup:
    """A whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("style", STYLE),
    )
    return Markup("<!doctype html>") + element(
        "html", head, element("body", stacked(*parts)), lang="en"
    )


def heading(text: str) -> Markup:
    return element("h2", text)


def note(text: str) -> Markup:
    return element("p", text, class_="note")


def warning(text: str) -> Markup:
    return element("p", text, class_="warning")


def charts(*drawn: Markup) -> Markup:
    """Pictures side by side, as many as fit."""
    return element("div", *drawn, class_="charts")


def row(*figures: Markup) -> Markup:
    """Figures side by side, each as wide as it is."""
    return element("div", *figures, class_="row")


def figure(caption: str, drawn: Markup) -> Markup:
    return element("figure", element("figcaption", caption), drawn)


def details(summary: str, *parts: Markup, kind: str = "") -> Markup:
    """Parts that are folded below their summary."""
    return element("details", element("summary", summary), stacked(*parts), class_=kind)


def unfolded(parts: Mapping[str, Markup]) -> Markup:
    """The first part is shown, the others are folded."""
    shown = [
        details(title, part) if i else element("h3", title) + part
        for i, (title, part) in enumerate(parts.items())
    ]
    return stacked(*shown)


def part(title: str, *parts: Markup, folded: bool = True) -> tuple[str, Markup]:
    """A part of a page with its title for the table of contents, and an address that this can link
    to; empty without content. folded: below its title."""
    inside = stacked(*(one for one in parts if one))
    if not inside:
        return title, inside
    if not folded:
        return title, element("section", inside, id=address(title))
    inside = element("div", inside, id=address(title))  # a link to what is folded unfolds it
    return title, element("details", element("summary", title), inside, class_="part")


def address(title: str) -> str:
    """The address of a part within the page."""
    return "-".join(re.findall("[a-z0-9]+", title.lower()))


def contents(titles: Iterable[str]) -> Markup:
    """Links to the parts of a page."""
    links = (element("a", title, href=f"#{address(title)}") for title in titles)
    return element("nav", *links, aria_label="Contents")


def dot(colour: str) -> Markup:
    return element("span", class_="dot", style=f"background:{colour}")


def legend(colours: Mapping[str, str]) -> Markup:
    dots = (element("span", dot(shade), name) for name, shade in colours.items())
    return element("p", Markup("&emsp; ").join(dots), class_="legend")


def table(
    heads: Sequence[Content], lines: Iterable[Sequence[Content]], text: Collection[int] = (0,)
) -> Markup:
    """Cells with line ends have several lines. text: the columns that are aligned to the left."""

    def kind(column: int) -> str | None:
        return "text" if column in text else None

    def head(column: int, cell: Content) -> Markup:
        return element("th", broken(cell), class_=kind(column), scope="col")

    def body(column: int, cell: Content) -> Markup:
        if not column:
            return element("th", broken(cell), class_=kind(column), scope="row")
        return element("td", broken(cell), class_=kind(column))

    rows = [element("tr", *(head(i, cell) for i, cell in enumerate(heads)))]
    rows += [element("tr", *(body(i, cell) for i, cell in enumerate(line))) for line in lines]
    return _scrolled(rows)


def shaded(
    values: pd.DataFrame,
    corner: str,
    span: tuple[float, float] | None = None,
    form: str = ".3f",
) -> Markup:
    """A table of numbers whose cells are shaded by value; span: the values of the palest and the
    darkest shade, if not the table's own; form: how numbers are written."""
    if values.empty:
        return note("Nothing was evaluated.")
    low, high = span or (float(values.min().min()), float(values.max().max()))

    def cell(value: float) -> Markup:
        if not math.isfinite(value):
            return element("td", "-")
        share = (value - low) / (high - low) if high > low else 0.5
        tint = f"color-mix(in srgb, #2563eb {4 + 36 * share:.0f}%, transparent)"
        return element("td", f"{value:{form}}", style=f"background:{tint}")

    heads = (element("th", broken(str(name)), scope="col") for name in values.columns)
    rows = [element("tr", element("th", corner, scope="col"), *heads)]
    for name, line in zip(values.index, values.to_numpy(), strict=True):
        first = element("th", str(name), scope="row")
        rows.append(element("tr", first, *(cell(float(v)) for v in line)))
    return _scrolled(rows)


def _scrolled(rows: Sequence[Markup]) -> Markup:
    """A table in a box that scrolls, for tables wider than the page."""
    return element("div", element("table", *rows), class_="scroll")
