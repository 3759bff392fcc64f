"""Does a model know when it fails? Its uncertainty against its score, client by client."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from communis.results.finished import Finished

DOUBT, SCORE, SENSORS = "mean@sigma_f", "macro_f1", "mean@available"
# The same over the windows that at least one sensor saw.
SEEN = {DOUBT: "mean@sigma_f_seen", SCORE: "macro_f1@seen", SENSORS: "mean@available_seen"}
FEWEST = 4  # points of a client, for a correlation of its own


def points(runs: Sequence[Finished], every: bool = False) -> pd.DataFrame:
    """Uncertainty, score and sensors of every client in every run, over the windows that some
    sensor saw or over `every` window; SENSORS is NaN in old runs."""
    parts = []
    for run in runs:
        t = run.last_scores
        split = "val" if (t["split"] == "val").any() else "test"
        own = t[(t["split"] == split) & t["own"] & (t["class"] == -1)]
        wide = own.pivot_table(index="client", columns="metric", values="value").reset_index()
        if not every:
            wide = wide.drop(columns=list(SEEN), errors="ignore")
            wide = wide.rename(columns={seen: name for name, seen in SEEN.items()})
        if {DOUBT, SCORE} <= set(wide.columns):
            wide = wide.reindex(columns=["client", DOUBT, SCORE, SENSORS])
            parts.append(wide.assign(place=run.place, seed=run.seed))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
