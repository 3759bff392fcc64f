"""What becomes of class vectors in a common latent space: do they meet, do they collapse, and does
it matter to the networks behind them?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.results.compare import runs_by_method
from communis.results.curves import Bands, by_round
from communis.results.finished import Finished

NOTED = (
    diagnostics.DISTANCE,
    diagnostics.SEPARATION,
    diagnostics.TARGET_SEPARATION,
    diagnostics.PULL,
)


def noted(run: Finished) -> pd.DataFrame:
    """Rounds x names of diagnostics: the mean over honest clients."""
    of_latent = pc.field("name").isin([what.name for what in NOTED])
    log = pd.DataFrame(run.rows("log", of_latent))
    if not len(log):  # of most methods; to pivot nothing takes longer than to read the log
        return pd.DataFrame()
    honest = log[~log["client"].isin(run.attackers)]
    return pd.DataFrame(honest.pivot_table(index="round", columns="name", values="value"))


def bands(runs: Sequence[Finished]) -> dict[str, Bands]:
    """By the name of the diagnostic and by method; without what no run noted."""
    tables = {name: [noted(run) for run in group] for name, group in runs_by_method(runs).items()}
    bands_by_name = {}
    for what in NOTED:
        by_method = {
            method: [table[what.name].dropna() for table in by_seed if what.name in table]
            for method, by_seed in tables.items()
        }
        by_method = {method: series for method, series in by_method.items() if series}
        if by_method:
            bands_by_name[what.name] = by_round(by_method)
    return bands_by_name
