"""What a reader must know before any score: too few seeds, nothing learned, a class that is never
predicted, a loss that still falls, and training alone that is not beaten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from communis.core.metrics import better
from communis.core.names import MOST_FREQUENT
from communis.core.selection import Select
from communis.results.clientwise import (
    REFERENCE,
    against,
    client_scores,
    clientwise,
)
from communis.results.compare import (
    paired,
    plainest,
    ranking,
    runs_by_cell,
    runs_by_method,
    scored,
)
from communis.results.constant import constant_scores, predicted, windows
from communis.results.curves import losses
from communis.results.estimate import FEWEST
from communis.results.finished import Finished

FEW_SEEDS = "too few seeds"
NOTHING = "nothing learned"
NEVER = "class never predicted"
FALLING = "loss still falls"
ALONE = "training alone not beaten"
SHORTEST = 8  # rounds of a run whose quarters say something
FALLEN = 0.1  # of the whole fall of the loss, from the third to the last quarter of the rounds


@dataclass(frozen=True)
class Alarm:
    """Something that weakens what the scores of a cell seem to say."""

    alarm: str  # which
    method: str  # empty: of all
    cell: str
    about: str  # the class, or what the method is compared with
    value: float  # seeds; the score over that of the constant; the share of the loss's fall
    runs: int  # in which this is so
    of: int  # runs


def alarms(runs: Sequence[Finished], metric: str, select: Select) -> list[Alarm]:
    """The alarms of every cell."""
    found: list[Alarm] = []
    for place, inside in runs_by_cell(scored(runs)).items():
        found += _few_seeds(place, inside, metric, select)
        for method, group in runs_by_method(inside).items():
            found += _nothing_learned(place, method, group, metric, select)
        for method, group in runs_by_method(inside).items():
            found += _never_predicted(place, method, group, metric)
        found += _still_falling(place, inside)
        found += _alone(place, inside, metric, select)
    return found


def _few_seeds(place: str, inside: Sequence[Finished], metric: str, select: Select) -> list[Alarm]:
    """Whether the best method has fewer seeds than a verdict needs. Of a single method
    without a grid there is nothing to judge."""
    groups = runs_by_method(inside)
    best = groups[ranking(inside, metric, select)[0][0]]
    seeds = paired(best, best, metric, select).seeds
    if seeds >= FEWEST or (len(groups) == 1 and not place):
        return []
    return [Alarm(FEW_SEEDS, "", place, "", seeds, len(inside), len(inside))]


def _nothing_learned(
    place: str, method: str, group: Sequence[Finished], metric: str, select: Select
) -> list[Alarm]:
    """Whether a method is no better for its clients than the most frequent class, or cannot be told
    from it."""
    constant = constant_scores(group, metric, select)
    if not constant:
        return []
    own = client_scores(group, metric, select)
    found = against(method, own, MOST_FREQUENT, constant, metric, [place])
    lowest = found.low if math.isfinite(found.low) else found.mean
    if not math.isfinite(found.mean) or lowest > 0:
        return []
    return [Alarm(NOTHING, method, place, MOST_FREQUENT, found.mean, len(group), len(group))]


def _never_predicted(
    place: str, method: str, group: Sequence[Finished], metric: str
) -> list[Alarm]:
    """The classes of test windows that no client of a run ever predicted in the last evaluated
    round; value: their share of these windows."""
    shares: dict[int, list[float]] = {}
    for run in group:
        said = predicted(run, metric).sum()
        there = windows(run, metric).sum()
        if len(said) and math.isfinite(said.sum()):
            for label, count in there.items():
                if count and not said.get(label, 0):
                    shares.setdefault(int(str(label)), []).append(count / there.sum())
    names = dict(enumerate(group[0].fleet["labels"]))
    return [
        Alarm(NEVER, method, place, names.get(label, f"class {label}"), fmean(found), len(found),
              len(group))
        for label, found in sorted(shares.items())
    ]  # fmt: skip


def _still_falling(place: str, inside: Sequence[Finished]) -> list[Alarm]:
    """The methods whose mean training loss did more than FALLEN of its fall from the third to the
    last quarter of the rounds. Of the loss itself, hardly anything may be left."""
    groups = runs_by_method(inside)
    found = []
    for method, band in losses(inside).items():
        quarter = len(band.mean) // 4
        if len(band.mean) < SHORTEST:
            continue
        first = fmean(band.mean[:quarter])
        before = fmean(band.mean[-2 * quarter : -quarter])
        last = fmean(band.mean[-quarter:])
        if first > last and before - last > FALLEN * (first - last):
            runs = len(groups[method])
            share = (before - last) / (first - last)
            found.append(Alarm(FALLING, method, place, "", share, runs, runs))
    return found


def _alone(place: str, inside: Sequence[Finished], metric: str, select: Select) -> list[Alarm]:
    """Whether no method is better than training alone: by the mean, or with enough seeds beyond
    doubt. value: the difference of the best one."""
    alone = plainest(inside, REFERENCE)
    rows = [row for row in clientwise(inside, metric, select) if math.isfinite(row.mean)]
    if not alone or not rows:
        return []
    best = max(rows, key=lambda row: better(metric) * row.mean)
    ahead = better(metric) * best.mean > 0
    judged = best.seeds >= FEWEST
    shown = any(row.verdict == f"better than {alone}" for row in rows)
    if ahead and (shown or not judged):
        return []
    return [Alarm(ALONE, best.method, place, alone, best.mean, best.seeds, best.seeds)]
