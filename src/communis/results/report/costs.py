"""What methods cost against the plainest one."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from statistics import fmean

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.compare import cost, grouped, plainest
from communis.results.finished import Finished
from communis.results.report.html import heading, note, table
from communis.results.wording.numbers import count, kilobytes, ratio


def section(runs: Sequence[Finished]) -> Markup:
    """Ratios to fedavg in the same cells and seeds; empty where it was not run."""
    groups, base = grouped(runs), plainest(runs)
    if not base or len(groups) < 2:
        return EMPTY
    others = [name for name in groups if name != base]
    lines = [_absolute(base, groups[base])]
    lines += [_relative(name, groups[name], groups[base]) for name in others]
    heads = ["method", "parameters\nper client", "of these\nprivate"]
    heads += ["KB\nup", "KB\ndown", "KB\nboth", "s per\nround"]
    about = (
        f"The line of {base} and the private parameters are absolute; the rest, marked x, are "
        f"ratios to {base} in the same cells and seeds. Bytes are payload per client and round. "
        "Seconds are wall time without evaluation; they depend on what else the machine was doing."
    )
    return heading(f"Overhead against {base}") + table(heads, lines) + note(about)


def _absolute(name: str, group: Sequence[Finished]) -> list[str]:
    mine = cost(group)
    values = [count(mine.parameters), _private(group)]
    values += map(kilobytes, (mine.bytes_up, mine.bytes_down, mine.bytes_up + mine.bytes_down))
    return [name, *values, f"{mine.seconds:.2f}"]


def _relative(name: str, group: Sequence[Finished], plain: Sequence[Finished]) -> list[str]:
    mine, private = cost(group), _private(group)
    where = {(run.seed, run.place) for run in group}
    same = [run for run in plain if (run.seed, run.place) in where]
    if not same:
        return [name, "-", private, "-", "-", "-", "-"]
    base = cost(same)
    return [
        name,
        ratio(mine.parameters, base.parameters),
        private,
        ratio(mine.bytes_up, base.bytes_up),
        ratio(mine.bytes_down, base.bytes_down),
        ratio(mine.bytes_up + mine.bytes_down, base.bytes_up + base.bytes_down),
        ratio(mine.seconds, base.seconds),
    ]


def _private(group: Sequence[Finished]) -> str:
    """The mean number of parameters that a client keeps to itself."""
    return count(fmean([c.get("private", nan) for run in group for c in run.clients] or [0]))
