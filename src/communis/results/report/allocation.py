"""What was trained: which groups of parameters, by whom and when, and how far clients differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from communis.core import diagnostics
from communis.core.markup import stacked
from communis.results.allocation import (
    in_order,
    log_of,
    noted,
    over_rounds,
    per_client,
    trained,
)
from communis.results.compare import grouped
from communis.results.finished import Finished
from communis.results.report.html import (
    charts,
    details,
    heading,
    legend,
    note,
    shaded,
    table,
    unfolded,
)
from communis.results.report.svg import Curve, band, colour, curves
from communis.results.wording.numbers import sized

ABOUT = (
    "The share of the clients of a round that trained a group of parameters, of those that own its "
    "sensor (or, for what serves all sensors, of all); means over rounds and seeds."
)
APART = (
    "How far what clients sent of a group lies from their mean (squared distance, mean over those "
    "who trained it), on a scale of powers of ten; large groups differ more for their size alone. "
    "Smoothed as the method does where it says so itself, else as measured in evaluated rounds."
)


def section(runs: Sequence[Finished]) -> Markup:
    """The runs are those of one cell. Empty where everybody trained everything and nobody noted how
    far clients differ."""
    maps, shades = dict[str, Markup](), dict[str, str]()
    everything, drawn = [], []
    for name, group in grouped(runs).items():
        logs = [log_of(run) for run in group]
        found = trained(group, logs)
        if len(found) and found["share"].min() < 1:
            shares = shaded(over_rounds(found), "group \\ rounds", (0, 1), ".0%")
            maps[name] = shares + details("client by client", _clients(group, logs))
        elif len(found):
            everything.append(name)
        if lines := _divergence(logs, shades):
            drawn.append(curves(lines, name, "round", "divergence", whole=True, powers=True))
    parts = [heading("What was trained"), note(ABOUT), unfolded(maps)] if maps else []
    if maps and everything:
        said = f"With {', '.join(everything)} every owner trained every group in every round."
        parts.append(note(said))
    if drawn:
        parts += [heading("How far clients differ"), note(APART), legend(shades)]
        parts.append(charts(*drawn))
    return stacked(*parts)


def _clients(group: Sequence[Finished], logs: Sequence[pd.DataFrame]) -> Markup:
    """How many groups a client trained, and how many it had time for."""
    lines = [
        [f"{row['client']}: {row['kind']}", sized(row["groups"]), sized(row["budget"])]
        for row in per_client(group, logs).reset_index().to_dict("records")
    ]
    return table(["client", "groups trained\nin a round", "budget"], lines)


def _divergence(logs: Sequence[pd.DataFrame], shades: dict[str, str]) -> list[Curve]:
    """A line for every group; shades: the colours of groups, to which new ones are added."""
    found = [noted(log, diagnostics.DIVERGENCE) for log in logs]
    if not all(map(len, found)):
        found = [noted(log, diagnostics.SPREAD) for log in logs]
    if not all(map(len, found)):
        return []
    tables = [t.pivot(index="round", columns="name", values="value") for t in found]
    lines = []
    for name in in_order(found[0]["name"].unique()):
        shade = shades.setdefault(name, colour(len(shades)))
        own = [t[name] for t in tables if name in t]
        joint = pd.concat(own, axis=1, join="inner")
        with np.errstate(divide="ignore"):
            powers = np.log10(joint.to_numpy())
        lines.append(band(name, shade, joint.index.tolist(), powers.T.tolist()))
    return lines
