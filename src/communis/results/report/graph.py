"""Who hears whom: the graphs that runs were on, what their edges carried, and how far the nodes'
aggregates lie apart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from communis.core.arrays import Array
from communis.core.markup import EMPTY, element, stacked
from communis.results.compare import runs_by_cell
from communis.results.finished import Finished
from communis.results.graph import alike, by_edge, degree_counts, facts, names, topology
from communis.results.report.html import charts, details, heading, legend, note, table
from communis.results.report.layout import layout
from communis.results.report.round_curves import distance_chart
from communis.results.report.svg import PALETTE, WIDTH, Axes, bars, picture
from communis.results.wording.numbers import kilobytes

NODES = 30  # drawn at most
DEGREES = 12  # bars of a distribution of degrees, at most
RADIUS, NODE, MARGIN, TOP = 165.0, 12.0, 24.0, 34.0  # pixels
WIDE = 1.5  # radii that a picture may reach to the side
BEND = 0.2  # of the way to the middle of a circle
RED = "#dc2626"
SHADES = tuple(shade for shade in PALETTE if shade != RED)
ABOUT = "Nodes are clients, coloured by what they sense; messages pass both ways along edges."
WIDTHS = " A wide edge carried more bytes over the run than a thin one."
RINGS = " A red ring marks an attacker; of runs on the same graph the one with most is drawn."
LATER = " Of a graph that changes the first is drawn; pale edges came later."
CONSENSUS = (
    "The root mean square distance of the nodes' aggregates from their mean: 0 where all agree. It "
    "falls as long as neighbours draw together faster than training takes them apart."
)


def section(runs: Sequence[Finished], shades: Mapping[str, str]) -> Markup:
    """Empty where all runs have a server in the middle. The first seed is shown, and of the others
    the graphs that look different. Of a single cell also curves."""
    there = [run for run in runs if topology(run)]
    if not there:
        return EMPTY
    colours = _colours(there)
    parts = [heading("Who hears whom"), note(_about(runs, there)), legend(colours)]
    shown: set[str] = set()
    for seed in sorted({run.seed for run in there}):
        groups = alike([run for run in there if run.seed == seed])
        different = [group for group in groups if _appearance(group[0]) not in shown]
        if different:
            block = _pictures(different, colours) + _facts(different)
            parts.append(details(f"seed {seed}", block) if shown else block)
        shown |= {_appearance(group[0]) for group in different}
    return stacked(*parts, consensus(there, shades) if len(runs_by_cell(runs)) == 1 else EMPTY)


def consensus(runs: Sequence[Finished], shades: Mapping[str, str]) -> Markup:
    """The runs are those of one cell. Empty where there are no nodes that could agree."""
    title = "Distance of the nodes from their mean"
    drawn = distance_chart(runs, "consensus_distance", title, shades)
    return heading("Do the nodes agree?") + note(CONSENSUS) + drawn if drawn else EMPTY


def _about(runs: Sequence[Finished], there: Sequence[Finished]) -> str:
    text = ABOUT + WIDTHS + RINGS * any(run.attackers for run in there)
    text += LATER * any(topology(run).get("changes") for run in there)
    stars = sorted({run.method for run in runs} - {run.method for run in there})
    return f"{text} Without a graph: {', '.join(stars)}." if stars else text


def _colours(runs: Sequence[Finished]) -> dict[str, str]:
    suites = {_suite(run, client) for run in runs for client in range(len(run.clients))}
    order = sorted(suites, key=lambda suite: (suite.count("+"), suite))
    return {suite: SHADES[i % len(SHADES)] for i, suite in enumerate(order)}


def _suite(run: Finished, client: int) -> str:
    return "+".join(run.sensors.get(client, ())) or "not described"


def _appearance(run: Finished) -> str:
    """Everything that tells one picture from another."""
    return json.dumps([topology(run), sorted(run.sensors.items()), run.attackers], sort_keys=True)


def _facts(groups: Sequence[Sequence[Finished]]) -> Markup:
    lines = []
    for name, group in zip(names(groups), groups, strict=True):
        graph = facts(group)
        parts = f"{len(graph.parts)} ({', '.join(map(str, graph.parts))})"
        link = "broadcast" if graph.link == "broadcast" else "edge"
        traffic = [
            f"{method} {kilobytes(count)} per {link}"
            for method, count in graph.bytes_per_round.items()
        ]
        lines.append(
            [
                name,
                str(graph.edges),
                _span(graph.fewest_neighbours, graph.most_neighbours),
                f"{graph.diameter:.0f}" if math.isfinite(graph.diameter) else "-",
                parts if len(graph.parts) > 1 else "1",
                "yes" if graph.changes else "no",
                f"{graph.loss:.0%}",
                graph.link,
                "\n".join(traffic),
            ]
        )
    heads = [
        "graph",
        "edges",
        "neighbours",
        "diameter",
        "parts",
        "changes",
        "messages\nlost",
        "link",
        "KB per round",
    ]
    return table(heads, lines, text=(0, 5, 7, 8))


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _pictures(groups: Sequence[Sequence[Finished]], colours: Mapping[str, str]) -> Markup:
    drawn = []
    for name, group in zip(names(groups), groups, strict=True):
        run = group[0]
        small = len(run.clients) <= NODES
        drawn.append(_picture(run, name, colours) if small else _distribution(run, name))
    return charts(*drawn)


def _distribution(run: Finished, name: str) -> Markup:
    """The numbers of neighbours of clients, in place of a graph that is too large to be drawn."""
    rows = {
        f"{_span(fewest, most)} neighbours": {"clients": float(clients)}
        for (fewest, most), clients in degree_counts(run, DEGREES).items()
    }
    longest = max(row["clients"] for row in rows.values())
    drawn = bars(rows, {"clients": SHADES[0]}, name, "clients", longest)
    return element("div", drawn, note(f"Graphs of more than {NODES} clients are not drawn."))


def _picture(run: Finished, name: str, colours: Mapping[str, str]) -> Markup:
    first = sorted((min(edge), max(edge)) for edge in topology(run)["edges"])
    places, circle = layout(first, len(run.clients), WIDE)
    side = 2 * RADIUS * math.sin(math.pi / len(places))  # of the polygon in a circle
    places = places * RADIUS + [WIDTH / 2, TOP + MARGIN - places[:, 1].min() * RADIUS]
    sent = by_edge(run)
    later = sorted(set(sent) - set(first))  # edges of a graph that changes
    about = ", ".join(filter(None, [run.method, run.place, f"seed {run.seed}"]))
    parts = [
        element("text", name, x=16, y=18, class_="title"),
        element("text", about, x=WIDTH - 16, y=18, text_anchor="end"),
    ]
    for edge in [*later, *first]:
        a, b = edge
        text = f"{a} - {b}" + (f": {kilobytes(sent[edge])} KB" if edge in sent else "")
        parts.append(
            element(
                "path",
                element("title", text),
                d=_line(places[a], places[b], side if circle else math.inf),
                fill="none",
                stroke="#94a3b8",
                stroke_width=f"{_width(sent, edge, len(first)):.1f}",
                opacity=".3" if edge in later else None,
            )
        )
    for client, (x, y) in enumerate(places):
        parts += _node(run, client, (x, y), colours)
    height = float(places[:, 1].max()) + MARGIN
    return picture(name, parts, Axes((0, 1), (0, 1), WIDTH, round(height)))


def _node(
    run: Finished, client: int, place: tuple[float, float], colours: Mapping[str, str]
) -> list[Markup]:
    """A client in its colour; an attacker with a ring around it."""
    suite, attacks = _suite(run, client), client in run.attackers
    x, y = f"{place[0]:.1f}", f"{place[1]:.1f}"
    name = element("title", f"{run.called(client)}: {suite}{', attacks' * attacks}")
    number = element(
        "text", str(client), x=x, y=f"{place[1] + 4:.1f}", text_anchor="middle", style="fill:#fff"
    )
    parts = [element("circle", name, cx=x, cy=y, r=NODE, fill=colours[suite]), number]
    if attacks:
        ring = element("circle", cx=x, cy=y, r=NODE + 4, fill="none", stroke=RED, stroke_width=3)
        parts.append(ring)
    return parts


def _line(a: Array, b: Array, straight: float) -> str:
    """The path of an edge from a to b. An edge that is longer than `straight` is a chord of a
    circle and bends towards its middle, so that it does not pass behind the nodes between."""
    middle = (a + b) / 2
    if np.hypot(*(b - a)) > 1.01 * straight:
        middle = middle + BEND * (np.array([WIDTH / 2, TOP + MARGIN + RADIUS]) - middle)
    (x0, y0), (x, y), (x1, y1) = a, middle, b
    return f"M{x0:.1f},{y0:.1f} Q{x:.1f},{y:.1f} {x1:.1f},{y1:.1f}"


def _width(sent: Mapping[tuple[int, int], float], edge: tuple[int, int], edges: int) -> float:
    """The width of an edge: the more bytes it carried and the fewer edges there are, the wider. All
    edges are alike where they carried the same, or where their bytes are unknown."""
    thickest = min(4.0, max(1.0, 200 / max(edges, 1)))
    if not sent or min(sent.values()) == max(sent.values()):
        return 0.4 * thickest
    return thickest * (0.2 + 0.8 * sent.get(edge, 0.0) / max(sent.values()))
