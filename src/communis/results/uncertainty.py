"""Uncertainty of models against their scores, by client: whether a model knows when it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from communis.core import diagnostics
from communis.results.compare import runs_by_method
from communis.results.correlation import Correlation, partial_spearman, spearman
from communis.results.finished import Finished
from communis.results.predictions import MEASURE

UNCERTAINTY = f"{MEASURE}{diagnostics.UNCERTAINTY.name}"
SCORE = "macro_f1"
SENSORS = f"{MEASURE}available"
# The same over the windows that at least one sensor saw.
SEEN = {UNCERTAINTY: f"{UNCERTAINTY}_seen", SCORE: f"{SCORE}@seen", SENSORS: f"{SENSORS}_seen"}
FEWEST = 4  # points of a client, for a correlation of its own


@dataclass(frozen=True)
class Awareness:
    """The correlation of a method's uncertainty with its score."""

    points: pd.DataFrame  # see `points`
    every_window: pd.DataFrame  # the same, with the windows that no sensor saw
    seen: Correlation
    sensors_fixed: Correlation  # with the number of available sensors held fixed
    every: Correlation  # over every window
    by_client: Mapping[int, Correlation]  # of the clients with at least FEWEST points


def points(runs: Sequence[Finished], every: bool = False) -> pd.DataFrame:
    """Uncertainty, score and sensors of every client in every run, over the windows that some
    sensor saw or over `every` window; SENSORS is NaN in old runs."""
    parts = []
    for run in runs:
        scores = run.last_scores
        if not scores["metric"].isin([UNCERTAINTY, SEEN[UNCERTAINTY]]).any():
            continue  # as of most methods
        split = "val" if (scores["split"] == "val").any() else "test"
        own = scores[(scores["split"] == split) & scores["own"] & (scores["class"] == -1)]
        wide = own.pivot_table(index="client", columns="metric", values="value").reset_index()
        if not every:
            wide = wide.drop(columns=list(SEEN), errors="ignore")
            wide = wide.rename(columns={seen: name for name, seen in SEEN.items()})
        if {UNCERTAINTY, SCORE} <= set(wide.columns):
            wide = wide.reindex(columns=["client", UNCERTAINTY, SCORE, SENSORS])
            parts.append(wide.assign(place=run.place, seed=run.seed))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def awareness(runs: Sequence[Finished]) -> dict[str, Awareness]:
    """Returns the correlations of every method that records an uncertainty."""
    by_method = {}
    for name, group in runs_by_method(runs).items():
        seen, every = points(group), points(group, every=True)
        if not len(seen):
            continue
        enough = {}
        for client in seen["client"].unique():
            own = seen[seen["client"] == client]
            correlation = spearman(own[UNCERTAINTY], own[SCORE])
            if correlation.n >= FEWEST:
                enough[int(client)] = correlation
        by_method[name] = Awareness(
            points=seen,
            every_window=every,
            seen=spearman(seen[UNCERTAINTY], seen[SCORE]),
            sensors_fixed=partial_spearman(seen[UNCERTAINTY], seen[SCORE], seen[SENSORS]),
            every=spearman(every[UNCERTAINTY], every[SCORE]),
            by_client=enough,
        )
    return by_method
