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
    confusion,
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
from communis.results.report.html import (
    contents,
    details,
    document,
    heading,
    note,
    part,
    warning,
)
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
    first = [
        element("h1", title),
        *(element("p", text, class_="lead") for text in headline(counting, metric, select)),
        *map(warning, sentences(alarms(counting, metric, select), metric, len(groups))),
    ]
    parts = _parts(runs, counting, groups, metric, select, targets, colours)
    there = [(name, content) for name, content in parts if content]
    about = [contents(name for name, _ in there), note(scope(runs)), *map(warning, warnings(runs))]
    return document(title, [*first, *about, *(content for _, content in there)])


def _parts(
    runs: Sequence[Finished],
    counting: Sequence[Finished],
    groups: Mapping[str, Sequence[Finished]],
    metric: str,
    select: Select,
    targets: Sequence[float],
    colours: Mapping[str, str],
) -> list[tuple[str, Markup]]:
    """The parts of a page with their titles. What is not about scores is folded."""
    alone = len(groups) == 1
    if alone:
        scores = comparison.main(counting, metric, select, colours)
        course = comparison.course(counting, metric, colours)
        detail = [
            *comparison.breakdown(counting, metric, select),
            confusion.section(counting, select),
        ]
    else:
        scores = over_cells.sections(counting, metric, select, colours)
        course, detail = [], []
    cells = [
        _cell(place, group, metric, select, targets, colours)
        for place, group in groups.items()
        if not alone
    ]
    return [
        part("Scores", *scores, folded=False),
        part("Newcomers", newcomers.section(counting, metric, select), folded=False),
        part("Attacks", attack.section(counting, metric, select, colours), folded=False),
        part("Round by round", *course, folded=False),
        part("Clients, sensors and classes", *detail),
        part("Single modalities", modalities.section(counting, metric, select)),
        part(
            "Time, energy and traffic",
            clock.section(counting, metric, select, targets, colours),
            traffic.section(counting, metric, select, targets),
            costs.section(counting),
        ),
        part("Privacy", privacy.section(counting, metric, select)),
        part(
            "Inside the methods",
            *(_of_one_cell(counting, colours) if alone else ()),
            views.section(counting, metric, select),
            uncertainty.section(counting),
        ),
        part("Graph and sensors", graph.section(counting, colours), sensing.section(runs)),
        part(
            "Every cell",
            *([heading("Every cell by itself"), *cells] if cells else ()),
            folded=False,
        ),
        part("Settings", heading("What was run"), *_configurations(runs)),
    ]


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
