"""What it scores to say the same class always: the one that the members' test windows have most
often. No method sees these labels, so a method that is no better has learned nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from communis.core.pooled import MEAN, SAID, is_pooled, of_client, sibling
from communis.core.selection import Select
from communis.results.clientwise import Scores, client_scores
from communis.results.finished import Finished

ACCURACY = "accuracy"


def constant_scores(runs: Sequence[Finished], metric: str, select: Select) -> Scores:
    """The score of every client of these runs, had its prediction been the most frequent class; of
    a pooled score its own. Empty for other scores than accuracy and macro-F1."""
    name = of_client(metric)
    scores = client_scores(runs, metric, select)
    found = {}
    for run in runs:
        table = windows(run, name)
        if len(table) and name in (sibling(name, ACCURACY), sibling(name, MEAN)):
            said = table.sum().idxmax()
            share = table[said] / table.sum(axis=1)
            # F1 of that class, and 0 of every other that the client has.
            classes = (table.drop(columns=said) > 0).sum(axis=1) + 1
            f1 = 2 * share / (1 + share) / classes
            value = share if name == sibling(name, ACCURACY) else f1
            own = scores[run.seed, run.place].index
            found[run.seed, run.place] = value.reindex(own)
    return found


def constant_mean(runs: Sequence[Finished], metric: str, select: Select) -> float:
    """The mean over clients, then over seeds and cells, of which every method has the same; NaN if
    there is none, and for a pooled score, which is no mean over clients."""
    first = {(run.seed, run.place): run for run in runs}
    scores = constant_scores(list(first.values()), metric, select)
    if not scores or is_pooled(metric):
        return math.nan
    return fmean(float(own.mean()) for own in scores.values())


def windows(run: Finished, metric: str) -> pd.DataFrame:
    """Clients x classes: the test windows of each class in the last evaluated round, by the
    metric's task. Empty where there are no classes."""
    return run.by_class(sibling(metric, "f1"), "support")


def predicted(run: Finished, metric: str) -> pd.DataFrame:
    """Clients x classes: the test windows that were predicted as each class, in the last evaluated
    round. Empty where this was not counted."""
    return run.by_class(sibling(metric, SAID), "value")
