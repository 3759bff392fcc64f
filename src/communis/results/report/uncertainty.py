"""Does a model know when it fails? Its uncertainty against its score, client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY, stacked
from communis.results.compare import cells, grouped
from communis.results.correlation import partial_spearman, spearman
from communis.results.finished import Finished
from communis.results.report.html import charts, details, heading, legend, note, table
from communis.results.report.svg import Dots, colour, scatter
from communis.results.uncertainty import DOUBT, FEWEST, SCORE, SENSORS, points
from communis.results.wording.numbers import correlated

ABOUT = (
    "One point per client and run: the mean fused uncertainty (sigma_f) of its validation windows "
    "(of its test windows where there is no validation) and their macro F1, in the last evaluated "
    "round. Only windows that at least one sensor saw count: one that no sensor saw has the "
    "largest sigma_f by definition and is guessed, which makes a correlation by itself (the last "
    "two columns count such windows too). A negative rank correlation (Spearman) means that the "
    "model is less sure where it fails; over several cells it also shows that some cells are "
    "harder for everybody. "
    "The more sensors are there, the lower sigma_f is by its formula, so it partly just counts "
    "them: the second figure holds the mean number of sensors fixed (partial rank correlation). "
    "The p-values take the points as independent, but seeds and cells share clients, so they are "
    "too small."
)


def section(runs: Sequence[Finished]) -> Markup:
    """Empty where no method has such an uncertainty."""
    groups = grouped(runs)
    found = {name: points(group) for name, group in groups.items()}
    found = {name: table for name, table in found.items() if len(table)}
    if not found:
        return EMPTY
    colours = {place: colour(i) for i, place in enumerate(cells(runs))}
    return stacked(
        heading("Does the model know when it fails?"),
        note(ABOUT),
        _pooled(found, {name: points(group, every=True) for name, group in groups.items()}),
        legend(colours) if len(colours) > 1 else EMPTY,
        charts(*(_chart(name, table, colours) for name, table in found.items())),
        *(details(f"{name}, client by client", _each(table)) for name, table in found.items()),
    )


def _pooled(found: Mapping[str, pd.DataFrame], every: Mapping[str, pd.DataFrame]) -> Markup:
    lines = []
    for name, t in found.items():
        plain = spearman(t[DOUBT], t[SCORE])
        held = partial_spearman(t[DOUBT], t[SCORE], t[SENSORS])
        guessed = spearman(every[name][DOUBT], every[name][SCORE])
        figures = correlated(plain) + correlated(held) + correlated(guessed)
        lines.append([name, str(plain.n), *figures])
    header = ["method", "points", "rho", "p", "rho, sensors\nheld fixed", "p"]
    return table([*header, "rho, unseen\nwindows too", "p"], lines)


def _each(points: pd.DataFrame) -> Markup:
    """As _pooled, for every client with enough points."""
    by_client = {client: spearman(t[DOUBT], t[SCORE]) for client, t in points.groupby("client")}
    enough = {client: found for client, found in by_client.items() if found.n >= FEWEST}
    if not enough:
        return note(f"No client has {FEWEST} points: run more seeds or cells.")
    lines = [[str(c), str(found.n), *correlated(found)] for c, found in enough.items()]
    return table(["client", "points", "rho", "p"], lines)


def _chart(name: str, points: pd.DataFrame, colours: Mapping[str, str]) -> Markup:
    dots = [
        Dots(str(place) or name, colours[str(place)], list(t[DOUBT]), list(t[SCORE]))
        for place, t in points.dropna(subset=[DOUBT, SCORE]).groupby("place", sort=False)
    ]
    return scatter(dots, name, "mean sigma_f", "validation macro F1")
