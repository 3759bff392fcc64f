"""The report of one or more runs as a single HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from communis.core.disk import regular, replace_file
from communis.core.markup import element
from communis.core.selection import Select
from communis.results.alarms import alarms
from communis.results.compare import runs_by_cell, runs_by_method, scored
from communis.results.finished import Finished
from communis.results.report import (
    allocation,
    attack,
    clock,
    comparison,
    costs,
    graph,
    latent,
    modalities,
    newcomers,
    over_cells,
    privacy,
    sensing,
    similarity,
    traffic,
    uncertainty,
    updates,
    views,
)
from communis.results.report.html import details, document, heading, note, warning
from communis.results.report.svg import colour
from communis.results.wording.alarms import sentences
from communis.results.wording.headline import headline
from communis.results.wording.scores import scope
from communis.results.wording.warnings import warnings


def write(
    runs: Sequence[Finished],
    path: Path,
    metric: str,
    title: str,
    select: Select = "last",
    targets: Sequence[float] = (),
) -> Path:
    """Writes the report to `path`. Lone surrogates, which JSON can hold and UTF-8 cannot, are
    written as escapes."""
    page = render(runs, metric, title, select, targets)
    replace_file(path, page.encode("utf-8", "backslashreplace"))
    return path


def render(
    runs: Sequence[Finished],
    metric: str,
    title: str,
    select: Select = "last",
    targets: Sequence[float] = (),
) -> Markup:
    """The methods side by side; for a grid all cells first, then each by itself. targets: see
    `timing.named`."""
    counting = scored(runs)
    groups = runs_by_cell(counting)
    colours = {name: colour(i) for i, name in enumerate(runs_by_method(counting))}
    raised = sentences(alarms(counting, metric, select), metric, len(groups))
    answer = " ".join(headline(counting, metric, select))
    parts = [element("h1", title), element("p", answer, class_="lead"), note(scope(runs))]
    parts += map(warning, [*raised, *warnings(runs)])
    if len(groups) > 1:
        parts += over_cells.sections(counting, metric, select)
    else:
        parts += comparison.sections(counting, metric, select, colours)
    parts += [
        newcomers.section(counting, metric, select),
        clock.section(counting, metric, select, targets, colours),
        traffic.section(counting, metric, select, targets),
        costs.section(counting),
        privacy.section(counting, metric, select),
        attack.section(counting, metric, select, colours),
        modalities.section(counting, metric, select),
    ]
    if len(groups) == 1:
        parts += _of_one_cell(counting, colours)
    parts += [
        views.section(counting, metric, select),
        uncertainty.section(counting),
        graph.section(counting, colours),
        sensing.section(runs),
    ]
    if len(groups) > 1:
        parts.append(heading("Every cell by itself"))
        for place, group in groups.items():
            parts.append(_cell(place, group, metric, select, targets, colours))
    parts += [heading("What was run"), *_configurations(runs)]
    return document(title, parts)


def _cell(
    place: str,
    group: Sequence[Finished],
    metric: str,
    select: Select,
    targets: Sequence[float],
    colours: Mapping[str, str],
) -> Markup:
    """One cell of a grid, folded."""
    return details(
        place or "no cell",
        *comparison.sections(group, metric, select, colours, explained=True),
        newcomers.section(group, metric, select),
        clock.section(group, metric, select, targets, colours, explained=True),
        traffic.section(group, metric, select, targets, explained=True),
        modalities.section(group, metric, select),
        attack.section(group, metric, select, colours, explained=True),
        graph.consensus(group, colours),
        *_of_one_cell(group, colours),
        views.section(group, metric, select),
        kind="cell",
    )


def _of_one_cell(group: Sequence[Finished], colours: Mapping[str, str]) -> list[Markup]:
    """The sections that cannot hold several cells."""
    return [
        latent.section(group, colours),
        similarity.section(group, colours),
        allocation.section(group),
        updates.section(group),
    ]


def _configurations(runs: Sequence[Finished]) -> list[Markup]:
    """The settings of the first run of every method and cell."""
    first: dict[tuple[str, str], Finished] = {}
    for run in runs:
        first.setdefault((run.method, run.place), run)
    parts = []
    for run in first.values():
        text = regular(run.path / "config.toml").read_text(encoding="utf-8")
        name = ", ".join(filter(None, [run.method, run.place, f"seed {run.seed}"]))
        parts.append(details(name, element("pre", text)))
    environment = json.dumps(runs[0].environment, indent=2)
    parts.append(details("environment", element("pre", environment)))
    return parts
