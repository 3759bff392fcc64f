"""What methods cost against the plainest one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean

from communis.compare import cost, grouped
from communis.finished import Finished
from communis.report.html import heading, note, table
from communis.report.words import count, kilobytes, ratio

BASE = "fedavg"


def section(runs: Sequence[Finished]) -> str:
    """Ratios to fedavg in the same cells and seeds; empty where it was not run."""
    groups = grouped(runs)
    if BASE not in groups or len(groups) < 2:
        return ""
    order = sorted(groups, key=lambda name: name != BASE)
    lines = [_line(name, groups[name], groups[BASE]) for name in order]
    heads = ["method", "parameters<br>per client", "of these<br>private"]
    heads += ["KB<br>up", "KB<br>down", "s per<br>round"]
    about = (
        "Bytes are payload per client and round. Seconds are wall time without evaluation, of the "
        "same cells and seeds; they depend on what else the machine was doing."
    )
    return heading(f"Overhead against {BASE}") + table(heads, lines) + note(about)


def _line(name: str, group: Sequence[Finished], plain: Sequence[Finished]) -> list[str]:
    mine = cost(group)
    private = fmean([c.get("private", float("nan")) for run in group for c in run.clients] or [0])
    if name == BASE:
        values = [count(mine.parameters), count(private)]
        values += [kilobytes(mine.bytes_up), kilobytes(mine.bytes_down), f"{mine.seconds:.2f}"]
        return [escape(name), *values]
    where = {(run.seed, run.place) for run in group}
    same = [run for run in plain if (run.seed, run.place) in where]
    if not same:
        return [escape(name), "-", count(private), "-", "-", "-"]
    base = cost(same)
    return [
        escape(name),
        ratio(mine.parameters, base.parameters),
        count(private),
        ratio(mine.bytes_up, base.bytes_up),
        ratio(mine.bytes_down, base.bytes_down),
        ratio(mine.seconds, base.seconds),
    ]
