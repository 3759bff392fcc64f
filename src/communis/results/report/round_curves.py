"""What happened round by round, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.compare import grouped
from communis.results.curves import recorded
from communis.results.finished import Finished
from communis.results.report.html import charts, legend
from communis.results.report.svg import band, curves
from communis.results.selection import Scores

POWERS = 30.0  # values that span more than this are drawn on a scale of powers of ten


def courses(runs: Sequence[Finished], field: str, title: str, shades: Mapping[str, str]) -> Markup:
    """A distance of the records by method. Empty where it has no meaning in any."""
    found = {name: [recorded(run, field) for run in g] for name, g in grouped(runs).items()}
    found = {name: by_seed for name, by_seed in found.items() if any(map(len, by_seed))}
    if not found:
        return EMPTY
    names = legend({name: shades[name] for name in found})
    return names + charts(by_round(found, shades, title, "distance"))


def by_round(
    found: Mapping[str, Sequence[Scores]], shades: Mapping[str, str], title: str, label: str
) -> Markup:
    """A chart with a line for every method and a band over its seeds, in the rounds that all of
    them have; on a scale of powers of ten where values span several."""
    tables = {
        name: pd.concat(list(by_seed), axis=1, join="inner") for name, by_seed in found.items()
    }
    values = np.concatenate([t.to_numpy().ravel() for t in tables.values()])
    positive = values[values > 0]
    powers = bool(len(positive)) and float(positive.max()) > POWERS * float(positive.min())
    lines = []
    for name, t in tables.items():
        ys = np.log10(t.where(t > 0).to_numpy()) if powers else t.to_numpy()
        lines.append(band(name, shades[name], t.index.tolist(), ys.T.tolist()))
    return curves(lines, title, "round", label, whole=True, powers=powers)
