"""What happened round by round: means over seeds, with the lowest and the highest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import numpy as np
import pandas as pd

from communis.exchange.messages import RoundRecord
from communis.results.compare import runs_by_method
from communis.results.finished import Finished
from communis.results.selection import Scores

WIDE = 30.0  # values that span a larger factor than this have a scale of powers of ten


@dataclass(frozen=True)
class Band:
    """A quantity along rounds, bytes, seconds or joules. Points without a value in some seed are
    left out."""

    x: Sequence[float]
    mean: Sequence[float]  # over seeds
    low: Sequence[float]
    high: Sequence[float]
    seeds: int
    powers: bool = False  # mean, low and high are logarithms to base 10

    @classmethod
    def of(
        cls, x: Sequence[float], by_seed: Sequence[Sequence[float]], powers: bool = False
    ) -> Band:
        """The band of one series of values per seed, all of them at the points `x`. Series that are
        longer than others are cut."""
        length = min([len(x), *map(len, by_seed)], default=0)
        points = [[values[i] for values in by_seed] for i in range(length)]
        complete = [i for i, point in enumerate(points) if all(map(math.isfinite, point))]
        return cls(
            x=[x[i] for i in complete],
            mean=[fmean(points[i]) for i in complete],
            low=[min(points[i]) for i in complete],
            high=[max(points[i]) for i in complete],
            seeds=len(by_seed),
            powers=powers,
        )


Bands = dict[str, Band]  # by method, group of parameters or whatever lines are named by


def recorded(run: Finished, field: str) -> Scores:
    """A field of the records by round, where it has a meaning."""
    values = {record.round: float(getattr(record, field)) for record in run.records}
    return pd.Series(values, dtype=float).dropna()


def scores_by_round(runs: Sequence[Finished], metric: str) -> Bands:
    """The mean test score of every method in its evaluated rounds."""
    return {
        name: Band.of([float(r.round) for r in group[0].evaluated], _scores(group, metric))
        for name, group in runs_by_method(runs).items()
    }


def scores_by_megabytes(runs: Sequence[Finished], metric: str) -> Bands:
    """The mean test score of every method against the payload that the fleet of the first seed had
    sent and received by then."""
    bands = {}
    for name, group in runs_by_method(runs).items():
        records = group[0].records
        totals = accumulate(record.bytes_up + record.bytes_down for record in records)
        rounds = [record.round for record in records]
        sent = dict(zip(rounds, totals, strict=True))
        megabytes = [sent[record.round] / 1e6 for record in group[0].evaluated]
        bands[name] = Band.of(megabytes, _scores(group, metric))
    return bands


def losses(runs: Sequence[Finished]) -> Bands:
    """The training loss of every method by round."""
    return {
        name: Band.of(
            [float(record.round) for record in group[0].records],
            [_values(run.records, lambda record: record.loss) for run in group],
        )
        for name, group in runs_by_method(runs).items()
    }


def distances(runs: Sequence[Finished], field: str) -> Bands:
    """A distance of the records by method; methods of which no run has it are left out."""
    series = {
        name: [recorded(run, field) for run in group]
        for name, group in runs_by_method(runs).items()
    }
    return by_round({name: by_seed for name, by_seed in series.items() if any(map(len, by_seed))})


def by_round(series: Mapping[str, Sequence[Scores]]) -> Bands:
    """The bands of series by round, in the rounds that all seeds have; all of them in powers of ten
    where positive values span a factor of more than WIDE."""
    tables = {name: joined(by_seed) for name, by_seed in series.items()}
    if not tables:
        return {}
    values = np.concatenate([table.to_numpy().ravel() for table in tables.values()])
    positive = values[values > 0]
    powers = bool(len(positive)) and float(positive.max()) > WIDE * float(positive.min())
    return {name: of_table(table, powers) for name, table in tables.items()}


def joined(by_seed: Sequence[Scores]) -> pd.DataFrame:
    """Rounds x seeds: the rounds that all seeds have."""
    return pd.concat(list(by_seed), axis=1, join="inner")


def of_table(table: pd.DataFrame, powers: bool = False) -> Band:
    """The band of a table of rounds x seeds. With `powers` of its logarithms: values that are not
    positive have none."""
    values = np.log10(table.where(table > 0).to_numpy()) if powers else table.to_numpy()
    return Band.of(table.index.tolist(), values.T.tolist(), powers)


def _scores(group: Sequence[Finished], metric: str) -> list[list[float]]:
    """The mean test scores by seed and evaluated round; NaN where a round lacks the metric."""
    key = f"test.{metric}"
    return [
        _values(run.evaluated, lambda record: record.scores.get(key, math.nan)) for run in group
    ]


def _values(records: Sequence[RoundRecord], value: Callable[[RoundRecord], float]) -> list[float]:
    return [value(record) for record in records]
