"""Does a model know when it fails? Its uncertainty against its score, client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from communis.compare import cells, grouped
from communis.finished import Finished
from communis.metrics.correlation import partial_spearman, spearman
from communis.report.html import details, heading, legend, note, table
from communis.report.svg import Dots, colour, scatter
from communis.report.words import correlated

DOUBT, SCORE, SENSORS = "mean@sigma_f", "macro_f1", "mean@available"
FEWEST = 4  # points of a client, for a correlation of its own
ABOUT = (
    "One point per client and run: the mean fused uncertainty (sigma_f) of its validation windows "
    "and their macro F1, in the last evaluated round. A negative rank correlation (Spearman) means "
    "that the model is less sure where it fails; over several cells it also shows that some cells "
    "are harder for everybody. The more sensors are there, the lower sigma_f is by its formula, so "
    "it partly just counts them: the second figure holds the mean number of sensors fixed (partial "
    "rank correlation). The p-values take the points as independent, but seeds and cells share "
    "clients, so they are too small."
)


def section(runs: Sequence[Finished]) -> str:
    """Empty where no method has such an uncertainty."""
    found = {name: points(group) for name, group in grouped(runs).items()}
    found = {name: table for name, table in found.items() if len(table)}
    if not found:
        return ""
    colours = {place: colour(i) for i, place in enumerate(cells(runs))}
    charts = [_chart(name, table, colours) for name, table in found.items()]
    return "\n".join(
        [
            heading("Does the model know when it fails?"),
            note(ABOUT),
            _pooled(found),
            legend(colours) if len(colours) > 1 else "",
            f"<div class='charts'>{''.join(charts)}</div>",
            *(details(f"{name}, client by client", _each(table)) for name, table in found.items()),
        ]
    )


def points(runs: Sequence[Finished]) -> pd.DataFrame:
    """Uncertainty, score and sensors of every client in every run; SENSORS is NaN in old runs."""
    parts = []
    for run in runs:
        t = run.last_scores
        own = t[(t["split"] == "val") & t["own"] & (t["class"] == -1)]
        wide = own.pivot_table(index="client", columns="metric", values="value").reset_index()
        if {DOUBT, SCORE} <= set(wide.columns):
            wide = wide.reindex(columns=["client", DOUBT, SCORE, SENSORS])
            parts.append(wide.assign(place=run.place, seed=run.seed))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _pooled(found: Mapping[str, pd.DataFrame]) -> str:
    lines = []
    for name, t in found.items():
        plain = spearman(t[DOUBT], t[SCORE])
        held = partial_spearman(t[DOUBT], t[SCORE], t[SENSORS])
        lines.append(
            [escape(name), str(plain.n), *map(escape, correlated(plain) + correlated(held))]
        )
    return table(["method", "points", "rho", "p", "rho, sensors<br>held fixed", "p"], lines)


def _each(points: pd.DataFrame) -> str:
    """As _pooled, for every client with enough points."""
    by_client = {client: spearman(t[DOUBT], t[SCORE]) for client, t in points.groupby("client")}
    enough = {client: found for client, found in by_client.items() if found.n >= FEWEST}
    if not enough:
        return note(f"No client has {FEWEST} points: run more seeds or cells.")
    lines = [[str(c), str(found.n), *map(escape, correlated(found))] for c, found in enough.items()]
    return table(["client", "points", "rho", "p"], lines)


def _chart(name: str, points: pd.DataFrame, colours: Mapping[str, str]) -> str:
    dots = [
        Dots(str(place) or name, colours[str(place)], list(t[DOUBT]), list(t[SCORE]))
        for place, t in points.dropna(subset=[DOUBT, SCORE]).groupby("place", sort=False)
    ]
    return scatter(dots, name, "mean sigma_f", "validation macro F1")
