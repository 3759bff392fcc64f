"""What becomes of class vectors in a common latent space: do they meet, do they collapse, and does
it matter to the networks behind them?"""

from __future__ import annotations

import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.results.finished import Finished

NOTED = (
    diagnostics.DISTANCE,
    diagnostics.SEPARATION,
    diagnostics.TARGET_SEPARATION,
    diagnostics.PULL,
)


def noted(run: Finished) -> pd.DataFrame:
    """Rounds x names: the mean over honest clients."""
    log = pd.DataFrame(run.rows("log", pc.field("name").isin([what.name for what in NOTED])))
    mine = log[~log["client"].isin(run.attackers)]
    return pd.DataFrame(mine.pivot_table(index="round", columns="name", values="value"))
