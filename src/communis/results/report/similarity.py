"""Who learns from whom: how alike the clients' class prototypes are, round by round, and the
weights that clients give each other for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from markupsafe import Markup

from communis.core.arrays import Array
from communis.core.markup import EMPTY, element, stacked
from communis.results.finished import Finished
from communis.results.report.graph import NODES, RED, SHADES
from communis.results.report.html import (
    charts,
    details,
    figure,
    heading,
    legend,
    note,
    row,
    shaded,
    unfolded,
)
from communis.results.report.layout import layout
from communis.results.report.svg import TOP, Axes, curves, drawn, picture
from communis.results.similarity import Learning, Span, bands, by_method, rank, span

MOMENTS = 5  # rounds that are drawn, at most
READABLE = 12  # clients; tables of more have to be asked for
SIDE, EDGE, MARGIN, NODE, WIDEST = 260, 6, 16.0, 12.0, 6.0  # pixels of a picture
SAMPLES = (1.0, 0.5, 0.1, -0.5)  # similarities whose lines explain the others
ABOUT = (
    "Similarity is the cosine between two clients' prototypes (mean features) of a class, mean "
    "over the classes that both have: 1 if they point in the same direction, 0 if one has nothing "
    "to do with the other. A weight is the share of a client in the prototypes that another one is "
    "given, mean over the receiver's classes. Bands reach from the lowest seed to the highest."
)
PICTURES = (
    "Clients are coloured and ordered by {by} and stand at the same place in all pictures. The "
    "width of a line is the similarity itself, on one scale in all pictures: nothing at 0, widest "
    "at 1, dashed below 0; who has no class in common is not joined. In the corner: from the "
    "lowest to the highest."
)
RINGS = " A red ring marks an attacker; means are over all clients."
SEEDS = (
    " Clients need not be the same in every seed, so pairs are not averaged: the first seed is "
    "drawn, and tables of the others can be opened."
)
TABLES = (
    "Weights: a row is who learns, a column from whom; a row sums to 1. Who lacks a class gets no "
    "weight for it, so where clients differ in classes, weights differ even without similarity. "
    "A dash: the client itself, or no class in common."
)
MANY = f"Pairs are not shown of more than {NODES} clients."


def section(runs: Sequence[Finished], shades: Mapping[str, str]) -> Markup:
    """The runs are those of one cell. Empty where no method compares its clients."""
    noted = by_method(runs)
    if not noted:
        return EMPTY
    everything = [x for group in noted.values() for x in group]
    parts = [heading("Who learns from whom"), note(ABOUT), _curves(noted, shades)]
    shown = {name: [x for x in group if _is_drawn(x)] for name, group in noted.items()}
    shown = {name: group for name, group in shown.items() if group}
    if shown:
        kinds = sorted({kind for x in everything for kind in x.kinds.values()}, key=rank)
        colours = {kind: SHADES[i % len(SHADES)] for i, kind in enumerate(kinds)}
        by = "model" if any(x.mixed for x in everything) else "what they sense"
        text = PICTURES.format(by=by) + RINGS * any(x.run.attackers for x in everything)
        text += SEEDS * any(len(group) > 1 for group in shown.values())
        parts += [note(text), legend(colours)]
        parts.append(unfolded({name: _block(group, colours) for name, group in shown.items()}))
    if any(len(x.clients) > NODES for x in everything):
        parts.append(note(MANY))
    return stacked(*parts)


def _is_drawn(x: Learning) -> bool:
    """Whether there are pairs, and not too many of them to be read."""
    return bool(x.rounds) and 1 < len(x.clients) <= NODES


def _curves(noted: Mapping[str, Sequence[Learning]], colours: Mapping[str, str]) -> Markup:
    means = bands(noted)
    if not means:
        return note("No two clients ever had a class in common.")
    names = legend({name: colours[name] for name in means})
    lines = drawn(means, colours)
    chart = curves(lines, "Mean similarity of two clients", "round", "cosine", integers=True)
    return names + charts(chart)


def _block(group: Sequence[Learning], colours: Mapping[str, str]) -> Markup:
    """Pictures and tables of the first seed; tables of the others."""
    first, *others = group
    tables = note(TABLES) + _tables(first)
    if len(first.clients) > READABLE:
        tables = details("all similarities and weights", tables)
    folded = [details(f"seed {x.run.seed}", note(_said(x)), _tables(x)) for x in others]
    return stacked(note(_said(first)), _pictures(first, colours), tables, *folded)


def _said(x: Learning) -> str:
    """The weights of the last round against equal ones."""
    text = f"Seed {x.run.seed}, round {x.rounds[-1]} of {x.run.config['run']['rounds']}:"
    weights = x.given
    if weights is None:
        return f"{text} no client gives any weight to another one."
    form = _form(x)
    own = f" and themselves {_span(weights.own, form)}" if weights.own else ""
    said = f" similarity moved {x.moved:.1%} of the weight among those who have a class;"
    moved = said if math.isfinite(x.moved) else ""
    return (
        f"{text}{moved} clients give each other weights of {_span(weights.others, form)}{own}. If "
        f"all had all classes, equal weights would be 1/{weights.peers} = "
        f"{1 / weights.peers:{form}}: these are {_span(weights.times, '.2f')} times that."
    )


def _form(x: Learning) -> str:
    """How weights are written."""
    return ".3f" if x.peers <= 10 else ".4f"


def _span(span: Span, form: str) -> str:
    low, high = (f"{value:{form}}" for value in span)
    return low if low == high else f"{low} to {high}"


def _tables(x: Learning) -> Markup:
    """Of the last round. Shades begin at 0: they make no more of a difference than there is."""
    liars = x.run.attackers
    names = {c: f"{c}: {kind}{', attacks' * (c in liars)}" for c, kind in x.kinds.items()}
    alike, given = x.alike(x.rounds[-1]), x.weights
    figures = {"Similarity": (alike, min(0.0, float(alike.min().min())), 1.0, ".3f")}
    if len(given):
        figures["Weight"] = (given, 0.0, max(2 / x.peers, float(given.max().max())), _form(x))
    parts = []
    for name, (noted, low, high, form) in figures.items():
        text = f"{name} in round {x.rounds[-1]}; palest {low:.2g}, darkest {high:.3g}"
        drawn = shaded(noted.rename(index=names), "client", (low, high), form)
        parts.append(figure(text, drawn))
    return row(*parts)


def _pictures(x: Learning, colours: Mapping[str, str]) -> Markup:
    """The scale, then every moment."""
    n = len(x.clients)
    everybody = list(combinations(range(n), 2))
    widest = min(WIDEST, max(1.0, 200 / len(everybody)))
    radius = SIDE / 2 - MARGIN
    places = layout(everybody, n, 1.0)[0] * radius
    places += [SIDE / 2, TOP + MARGIN - places[:, 1].min()]
    nodes = _nodes(x, places, min(NODE, 2.5 * radius / n), colours)
    size = Axes((0, 1), (0, 1), SIDE, round(places[:, 1].max() + MARGIN))
    moments = np.unique(np.linspace(0, len(x.rounds) - 1, MOMENTS).round().astype(int))
    drawn = []
    for now in [x.rounds[i] for i in moments]:
        parts = [*_lines(x, now, places, widest), *nodes]
        shown = picture(f"similarity of clients, round {now}", parts, size)
        drawn.append(element("figure", shown, style=f"flex:1 1 200px;max-width:{SIDE}px"))
    return _scale(widest) + row(*drawn)


def _lines(x: Learning, now: int, places: Array, widest: float) -> list[Markup]:
    """The title, and a line for all who can be compared."""
    alike = x.alike(now).to_numpy()
    place = {client: i for i, client in enumerate(x.clients)}
    parts = [element("text", f"round {now}", x=EDGE, y=18, class_="title")]
    if np.isfinite(alike).any():
        text = _span(span(alike), ".2f")
        parts.append(element("text", text, x=SIDE - EDGE, y=18, text_anchor="end"))
    for one, other in combinations(sorted(place), 2):
        a, b = place[one], place[other]
        if math.isfinite(alike[a, b]):
            parts.append(_line(places[a], places[b], alike[a, b], widest, f"{one} - {other}: "))
    return parts


def _scale(widest: float) -> Markup:
    parts, step = [], 80
    for i, sample in enumerate(SAMPLES):
        left, right = np.array([(step * i, 10), (step * i + 34, 10)])
        parts.append(_line(left, right, sample, widest))
        parts.append(element("text", f"{sample:g}", x=right[0] + 6, y=14))
    size = Axes((0, 1), (0, 1), step * len(SAMPLES), 20)
    drawn = picture("width of a line by similarity", parts, size)
    return element("div", drawn, style=f"max-width:{size.width}px")


def _line(a: Array, b: Array, value: float, widest: float, ends: str = "") -> Markup:
    return element(
        "line",
        element("title", f"{ends}{value:.3f}"),
        x1=f"{a[0]:.1f}",
        y1=f"{a[1]:.1f}",
        x2=f"{b[0]:.1f}",
        y2=f"{b[1]:.1f}",
        style="stroke:var(--soft)",
        stroke_width=f"{abs(value) * widest:.2f}",
        stroke_dasharray="4 3" if value < 0 else None,
    )


def _nodes(x: Learning, places: Array, radius: float, colours: Mapping[str, str]) -> list[Markup]:
    parts = []
    for client, (across, down) in zip(x.clients, places, strict=True):
        kind, attacks = x.kinds[client], client in x.run.attackers
        parts.append(
            element(
                "circle",
                element("title", f"{x.run.called(client)}: {kind}{', attacks' * attacks}"),
                cx=f"{across:.1f}",
                cy=f"{down:.1f}",
                r=f"{radius:.1f}",
                fill=colours[kind],
                stroke=RED if attacks else None,
                stroke_width=3 if attacks else None,
            )
        )
        parts.append(
            element(
                "text",
                str(client),
                x=f"{across:.1f}",
                y=f"{down + 4:.1f}",
                text_anchor="middle",
                style="fill:#fff;pointer-events:none",
            )
        )
    return parts
