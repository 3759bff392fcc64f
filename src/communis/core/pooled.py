"""The pooled macro-F1: computed from the windows of all clients together, not as a mean over
clients.

For every class, the evaluation of a client keeps three counts: the windows of that class (the
support), the windows that were predicted as that class ("said"), and the correct ones among these
("hits"). Their sums over clients are the counts of all windows. `macro_f1_pooled@all` is computed
from `hits@all` as `macro_f1_pooled` is from `hits`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

MEAN, POOLED = "macro_f1", "macro_f1_pooled"
HITS, SAID = "hits", "said"  # of a class: windows predicted correctly, and windows predicted


@dataclass(frozen=True)
class Count:
    """A count of one class in the evaluation of one client."""

    metric: str
    label: int
    value: float
    support: int


def pooled_f1(counts: Iterable[Count]) -> float:
    """The macro-F1 of all windows together, over the classes that any client has or predicts; NaN
    if the predictions of a client were not finite."""
    counts = list(counts)
    if any(math.isnan(one.value) for one in counts):
        return math.nan
    hits, said, support = Counter[int](), Counter[int](), Counter[int]()
    for one in counts:
        if _core(one.metric) == HITS:
            hits[one.label] += int(one.value)
            support[one.label] += one.support  # SAID has the same support; count it once
        else:
            said[one.label] += int(one.value)
    return fmean(2 * hits[c] / (said[c] + support[c]) for c in sorted(support))


def is_count(metric: str) -> bool:
    return _core(metric) in (HITS, SAID)


def is_pooled(metric: str) -> bool:
    return _core(metric) == POOLED


def sibling(metric: str, core: str) -> str:
    """The name of another score of the same task and view: `place.hits@all` with MEAN becomes
    `place.macro_f1@all`."""
    name, at, view = metric.partition("@")
    task, dot, _ = name.rpartition(".")
    return f"{task}{dot}{core}{at}{view}"


def of_client(metric: str) -> str:
    """The score of a single client: its own macro-F1 instead of the pooled one."""
    return sibling(metric, MEAN) if is_pooled(metric) else metric


@cache
def _core(metric: str) -> str:
    """A score's name without its task and view."""
    return metric.partition("@")[0].rpartition(".")[2]
