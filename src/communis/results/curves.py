"""What happened round by round."""

from __future__ import annotations

import pandas as pd

from communis.results.finished import Finished
from communis.results.selection import Scores


def recorded(run: Finished, field: str) -> Scores:
    """A field of the records by round, where it has a meaning."""
    values = {record.round: float(getattr(record, field)) for record in run.records}
    return pd.Series(values, dtype=float).dropna()
