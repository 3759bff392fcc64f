"""What was trained: which groups of parameters, by whom and when, and how far clients differ."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import stacked
from communis.results.allocation import Allocation, allocation, over_rounds
from communis.results.compare import runs_by_method
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
from communis.results.report.svg import colour, curves, drawn
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
    maps: dict[str, Markup] = {}
    colours: dict[str, str] = {}
    everything, charts_drawn = [], []
    for name, group in runs_by_method(runs).items():
        trained = allocation(group)
        if trained.elastic:
            shares = shaded(over_rounds(trained.shares), "group \\ rounds", (0, 1), ".0%")
            maps[name] = shares + details("client by client", _clients(trained))
        elif len(trained.shares):
            everything.append(name)
        if bands := trained.bands:
            for parameters in bands:
                colours.setdefault(parameters, colour(len(colours)))
            lines = drawn(bands, colours)
            charts_drawn.append(
                curves(lines, name, "round", "divergence", integers=True, powers=True)
            )
    parts = [heading("What was trained"), note(ABOUT), unfolded(maps)] if maps else []
    if maps and everything:
        names = ", ".join(everything)
        parts.append(note(f"With {names} every owner trained every group in every round."))
    if charts_drawn:
        parts += [heading("How far clients differ"), note(APART), legend(colours)]
        parts.append(charts(*charts_drawn))
    return stacked(*parts)


def _clients(trained: Allocation) -> Markup:
    """How many groups a client trained, and how many it had time for."""
    lines = [
        [f"{row['client']}: {row['kind']}", sized(row["groups"]), sized(row["budget"])]
        for row in trained.clients.reset_index().to_dict("records")
    ]
    return table(["client", "groups trained\nin a round", "budget"], lines)
