"""The answer of a comparison in three sentences: who is best, at which cost, against training alone
and the most frequent class, and for newcomers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from communis.core.metrics import better
from communis.core.pooled import is_pooled, of_client
from communis.core.selection import Select
from communis.results.clientwise import REFERENCE, Clientwise, clientwise, reference
from communis.results.compare import (
    cost,
    estimate,
    plainest,
    rows,
    runs_by_cell,
    runs_by_method,
    scored,
)
from communis.results.constant import constant_mean
from communis.results.estimate import FEWEST, UNCLEAR
from communis.results.finished import Finished
from communis.results.newcomers import newcomers
from communis.results.over_cells import Selected, lines
from communis.results.wording.numbers import count, plain, sized, span
from communis.results.wording.warnings import listed

NAMED = 4  # methods that are named at most


def headline(runs: Sequence[Finished], metric: str, select: Select) -> list[str]:
    """The sentences, each of which is about one question. Of a grid the averages over its cells."""
    runs = scored(runs)
    several = len(runs_by_cell(runs)) > 1
    compared: Sequence[Selected]
    compared = lines(runs, metric, select) if several else rows(runs, metric, select)
    said = [_best(runs, compared, metric, select)]
    if len(compared) > 1:
        said.append(_against(runs, compared[0].method, metric, select))
    said.append(_newcomers(runs, metric, select))
    return [text for text in said if text]


def _best(
    runs: Sequence[Finished], compared: Sequence[Selected], metric: str, select: Select
) -> str:
    """Who is best, and at which cost."""
    best = compared[0]
    score = best.selected[select].mean
    if not math.isfinite(score):
        return ""
    alone = len(compared) == 1
    whom = " for the members" if any(run.newcomers for run in runs) else ""
    cells = ", averaged over cells" if len(runs_by_cell(runs)) > 1 else ""
    lowest = "lowest" if better(metric) < 0 else "best"
    guess = constant_mean(runs, metric, select)
    constant = f" (always the most frequent class: {guess:.3f})" if math.isfinite(guess) else ""
    text = f"{best.method} has {'a' if alone else f'the {lowest}'} mean test {plain(metric)} of " \
           f"{score:.3f}{whom}{cells}{constant}, for {_cost(runs, best.method)}"  # fmt: skip
    close = [row.method for row in compared[1:] if row.verdict == UNCLEAR]
    if len(close) > NAMED:
        close = [f"{len(close)} others"]
    return f"{text}; {listed(close)} cannot be told apart from it." if close else f"{text}."


def _cost(runs: Sequence[Finished], method: str) -> str:
    group = runs_by_method(runs)[method]
    spent = cost(group)
    joules = [record.virtual_joules for run in group for record in run.records]
    parts = [f"{spent.total_bytes / 1e6:,.1f} MB in all", f"{spent.seconds:.2f} s per round"]
    if all(map(math.isfinite, joules)):
        parts.append(f"{sized(fmean(joules))} J per round by the device clock")
    return listed(parts)


def _against(runs: Sequence[Finished], best: str, metric: str, select: Select) -> str:
    """The best method against the reference; if it is the reference, the next one against it."""
    base = reference(runs, metric, select)
    compared = [row for row in clientwise(runs, metric, select) if math.isfinite(row.mean)]
    if not compared:
        return ""
    row = next((row for row in compared if row.method == best), compared[0])
    group = runs_by_method(runs)[base]
    score = estimate(group, metric, select, runs_by_cell(runs)).mean
    kind = "training alone" if base == plainest(runs, REFERENCE) else "the reference"
    about = f"{base}: {score:.3f}, {_cost(runs, base)}"
    if base == best:
        return f"Against it, {row.method}, the best of the others, is at {difference(row, metric)}."
    return f"Against {kind} ({about}) that is {difference(row, metric)}."


def difference(row: Clientwise, metric: str) -> str:
    """A difference with its interval, who gains, and the verdict."""
    details = []
    if math.isfinite(row.low):
        details.append(f"95 % interval {row.low:+.3f} to {row.high:+.3f}")
    details.append(f"better for {row.better} of {row.clients} clients")
    if is_pooled(metric):
        details.append(f"by their own {plain(of_client(metric))}")
    return f"{row.mean:+.3f} ({', '.join(details)}): {verdict(row)}"


def verdict(row: Clientwise) -> str:
    """The verdict with what it rests on."""
    if row.seeds < FEWEST:
        return f"{count(row.seeds)} seed{'s' * (row.seeds > 1)} conclude{'s' * (row.seeds == 1)} " \
               "nothing"  # fmt: skip
    if math.isnan(row.p_holm):
        return row.verdict
    p = "p < 0.01" if row.p_holm < 0.01 else f"p = {row.p_holm:.2f}"
    return f"{row.verdict} ({p})"


def _newcomers(runs: Sequence[Finished], metric: str, select: Select) -> str:
    found = newcomers(runs, metric, select)
    if found is None:
        return ""
    whom = f"the {span(found.count)} newcomers" if set(found.count) != {1} else "the newcomer"
    best = found.rows[0]
    name = found.metrics[0]
    if not best.common or not math.isfinite(best.scores[name].mean):
        return f"For {whom} no method here has a model."
    text = f"For {whom} {best.method} is best, with {best.scores[name].mean:.3f}"
    if name in found.control:
        text += f" against {found.control[name].mean:.3f} of always the most frequent class"
    lacking = [row.method for row in found.rows if not row.common]
    if len(lacking) > NAMED:
        lacking = [f"{len(lacking)} methods"]
    have = "has" if len(lacking) == 1 else "have"
    return f"{text}; {listed(lacking)} {have} no model for them." if lacking else f"{text}."
