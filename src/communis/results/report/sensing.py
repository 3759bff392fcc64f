"""The sensors that clients own, and when these were missing."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.data.recordings.windows import TRAIN
from communis.fleet.availability.plot import client_map, sensor_map, suite_map
from communis.results.compare import runs_by_cell
from communis.results.finished import Finished
from communis.results.report.html import heading, note, unfolded
from communis.results.sensing import missing

CLIENTS = 12  # drawn at most
ABOUT = (
    "Blue: there; grey: not owned, or missing. Time is a client's own, its recordings laid end to "
    "end; training windows only, and parts that belong to another split are drawn as there."
)


def section(runs: Sequence[Finished]) -> Markup:
    """Maps of the first seed of every cell; empty where no client is described."""
    firsts = [min(group, key=lambda run: run.seed) for group in runs_by_cell(runs).values()]
    drawn = [(run, _maps(run)) for run in firsts if run.clients]
    if not drawn:
        return EMPTY
    maps = {", ".join(filter(None, [run.place, f"seed {run.seed}"])): maps for run, maps in drawn}
    return stacked(heading("Which sensors, and when"), note(ABOUT), unfolded(maps))


def _maps(run: Finished) -> Markup:
    suites = [tuple(client.get("sensors", ())) for client in run.clients]
    union = sorted({m for suite in suites for m in suite})
    owned = element("div", suite_map(suites, union, "clients x sensors"), class_="maps")
    trace = run.trace
    if trace is None:
        return owned + note("No sensor that a client owns was seen to be missing.")
    drawn = [
        sensor_map(client_map(trace, suite, i, TRAIN), seconds, run.called(i))
        for i, suite in enumerate(suites[:CLIENTS])
        if (seconds := float(trace.seconds[i, TRAIN]))
    ]
    more = f" The first {CLIENTS} of {len(suites)} clients:" if len(suites) > CLIENTS else ""
    text = f"{missing(trace, suites):.0%} of the time of the sensors that clients own is missing."
    maps = element("div", *(element("div", picture) for picture in drawn), class_="charts maps")
    return owned + note(text + more) + maps
