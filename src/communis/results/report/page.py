"""The report of one or more runs as a single HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from communis.core.disk import replace_file
from communis.core.markup import element
from communis.core.selection import Select
from communis.results.compare import cells, grouped, scored
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
    privacy,
    sensing,
    similarity,
    traffic,
    uncertainty,
    updates,
    views,
)
from communis.results.report import cells as grid
from communis.results.report.html import details, document, heading, note, warning
from communis.results.report.svg import colour
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
    """The report is at `path`. Halves of characters, which JSON can hold and UTF-8 cannot, are
    written out."""
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
    seen = scored(runs)
    groups = cells(seen)
    colours = {name: colour(i) for i, name in enumerate(grouped(seen))}
    if len(groups) > 1:
        main = grid.sections(seen, metric, select)
    else:
        main = comparison.sections(seen, metric, select, colours)
    each = [
        details(
            place or "no cell",
            *comparison.sections(group, metric, select, colours, explained=True),
            clock.section(group, metric, select, targets, colours, explained=True),
            traffic.section(group, metric, select, targets, explained=True),
            modalities.section(group, metric, select),
            attack.section(group, metric, select, colours, explained=True),
            graph.consensus(group, colours),
            latent.section(group, colours),
            similarity.section(group, colours),
            allocation.section(group),
            updates.section(group),
            views.section(group, metric, select),
            kind="cell",
        )
        for place, group in groups.items()
        if len(groups) > 1
    ]
    return document(
        title,
        [
            element("h1", title),
            note(scope(runs)),
            *map(warning, warnings(runs)),
            *main,
            clock.section(seen, metric, select, targets, colours),
            traffic.section(seen, metric, select, targets),
            costs.section(seen),
            privacy.section(seen, metric, select),
            attack.section(seen, metric, select, colours),
            modalities.section(seen, metric, select),
            *([] if each else [latent.section(seen, colours), similarity.section(seen, colours)]),
            *([] if each else [allocation.section(seen), updates.section(seen)]),
            views.section(seen, metric, select),
            uncertainty.section(seen),
            graph.section(seen, colours),
            sensing.section(runs),
            *([heading("Every cell by itself"), *each] if each else []),
            heading("What was run"),
            *_configurations(runs),
        ],
    )


def _configurations(runs: Sequence[Finished]) -> list[Markup]:
    """The settings of the first seed of every method and cell."""
    first = {(run.method, run.place): run for run in reversed(runs)}
    parts = []
    for run in [run for run in runs if run is first[run.method, run.place]]:
        text = (run.path / "config.toml").read_text(encoding="utf-8")
        name = ", ".join(filter(None, [run.method, run.place, f"seed {run.seed}"]))
        parts.append(details(name, element("pre", text)))
    environment = json.dumps(runs[0].environment, indent=2)
    parts.append(details("environment", element("pre", environment)))
    return parts
