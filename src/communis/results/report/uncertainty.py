"""Does a model know when it fails? Its uncertainty against its score, client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, stacked
from communis.results.compare import runs_by_cell
from communis.results.finished import Finished
from communis.results.report.html import charts, details, heading, legend, note, table
from communis.results.report.svg import Dots, colour, scatter
from communis.results.uncertainty import FEWEST, SCORE, UNCERTAINTY, Awareness, awareness
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
    by_method = awareness(runs)
    if not by_method:
        return EMPTY
    colours = {place: colour(i) for i, place in enumerate(runs_by_cell(runs))}
    folded = [
        details(f"{name}, client by client", _each(method)) for name, method in by_method.items()
    ]
    return stacked(
        heading("Does the model know when it fails?"),
        note(ABOUT),
        _pooled(by_method),
        legend(colours) if len(colours) > 1 else EMPTY,
        charts(*(_chart(name, method, colours) for name, method in by_method.items())),
        *folded,
    )


def _pooled(by_method: Mapping[str, Awareness]) -> Markup:
    lines = []
    for name, method in by_method.items():
        lines.append(
            [
                name,
                str(method.seen.n),
                *correlated(method.seen),
                *correlated(method.sensors_fixed),
                *correlated(method.every),
            ]
        )
    heads = ["method", "points", "rho", "p", "rho, sensors\nheld fixed", "p"]
    return table([*heads, "rho, unseen\nwindows too", "p"], lines)


def _each(method: Awareness) -> Markup:
    """As _pooled, for every client with enough points."""
    if not method.by_client:
        return note(f"No client has {FEWEST} points: run more seeds or cells.")
    lines = [
        [str(client), str(correlation.n), *correlated(correlation)]
        for client, correlation in method.by_client.items()
    ]
    return table(["client", "points", "rho", "p"], lines)


def _chart(name: str, method: Awareness, colours: Mapping[str, str]) -> Markup:
    known = method.points.dropna(subset=[UNCERTAINTY, SCORE])
    dots = []
    for place, points in known.groupby("place", sort=False):
        shade = colours[str(place)]
        dots.append(Dots(str(place) or name, shade, list(points[UNCERTAINTY]), list(points[SCORE])))
    return scatter(dots, name, "mean sigma_f", "validation macro F1")
