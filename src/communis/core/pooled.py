"""The macro-F1 of all clients' windows together: one confusion for all, not a mean over people.

Of every class a client's evaluation keeps three counts: its windows of that class (the support),
how many windows were said to be of it, and how many of these were. Their sums over clients are the
counts of all windows. `macro_f1_pooled@all` comes from `hits@all` as `macro_f1_pooled` from `hits`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

MEAN, POOLED = "macro_f1", "macro_f1_pooled"
HITS, SAID = "hits", "said"  # of a class: windows recognised, and windows said to be of it


@dataclass(frozen=True)
class Count:
    """What a client's evaluation counted of a class."""

    metric: str
    label: int
    value: float
    support: int


def pooled_f1(counts: Iterable[Count]) -> float:
    """The macro-F1 of all these windows together, over the classes that are present or predicted
    anywhere; NaN if a client's predictions were no numbers."""
    counts = list(counts)
    if any(math.isnan(one.value) for one in counts):
        return math.nan
    hits, said, support = Counter[int](), Counter[int](), Counter[int]()
    for one in counts:
        if _core(one.metric) == HITS:
            hits[one.label] += int(one.value)
            support[one.label] += one.support  # SAID has the same one: it counts once
        else:
            said[one.label] += int(one.value)
    return fmean(2 * hits[c] / (said[c] + support[c]) for c in sorted(support))


def is_count(metric: str) -> bool:
    return _core(metric) in (HITS, SAID)


def is_pooled(metric: str) -> bool:
    return _core(metric) == POOLED


def sibling(metric: str, core: str) -> str:
    """Another score of the same task and view: of `place.hits@all` with MEAN,
    `place.macro_f1@all`."""
    name, at, view = metric.partition("@")
    task, dot, _ = name.rpartition(".")
    return f"{task}{dot}{core}{at}{view}"


def of_client(metric: str) -> str:
    """The score that a single client has: of its windows alone, the pooled macro-F1 is its own."""
    return sibling(metric, MEAN) if is_pooled(metric) else metric


def _core(metric: str) -> str:
    """A score's name without its task and view."""
    return metric.partition("@")[0].rpartition(".")[2]
