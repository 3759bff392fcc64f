"""What the frames have in common: columns that name runs, and columns of estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from communis.results.compare import runs_by_cell
from communis.results.estimate import Estimate
from communis.results.finished import Finished

ALL = "all cells"  # the cell of means over the cells of a grid
METHOD = ("method", "cell")
RUN = (*METHOD, "seed")
# Mean, sample standard deviation and number of seeds, how many of them have no finite value, and
# the ends of the 95 % interval of the mean.
ESTIMATE = ("mean", "spread", "seeds", "diverged", "low", "high")

Row = Mapping[str, Any]


def frame(rows: Iterable[Row], columns: Sequence[str]) -> pd.DataFrame:
    """A frame with these columns, also where there are no rows."""
    return pd.DataFrame(list(rows), columns=list(columns))


def stack(parts: Iterable[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The rows of all parts that have some, with these columns."""
    there = [part for part in parts if len(part)]
    if not there:
        return pd.DataFrame(columns=list(columns))
    return pd.concat(there, ignore_index=True)[list(columns)]


def of_run(run: Finished) -> dict[str, Any]:
    return {"method": run.method, "cell": run.place, "seed": run.seed}


def named(table: pd.DataFrame, run: Finished) -> pd.DataFrame:
    """The table with the columns that name a run."""
    return table.assign(**of_run(run))


def of_estimate(estimate: Estimate) -> dict[str, Any]:
    """The columns of ESTIMATE."""
    return {
        "mean": estimate.mean,
        "spread": estimate.spread,
        "seeds": estimate.seeds,
        "diverged": estimate.diverged,
        "low": estimate.mean - estimate.half_width,
        "high": estimate.mean + estimate.half_width,
    }


def each_cell(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of every cell by its name, and of a grid all of them under ALL."""
    groups = runs_by_cell(runs)
    return {**groups, ALL: list(runs)} if len(groups) > 1 else groups
