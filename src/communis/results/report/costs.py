"""What methods cost against the plainest one."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.finished import Finished
from communis.results.overhead import QUANTITIES, Overhead, overheads
from communis.results.report.html import heading, note, table
from communis.results.wording.numbers import count, kilobytes, ratio


def section(runs: Sequence[Finished]) -> Markup:
    """Ratios to fedavg in the same cells and seeds; empty where it was not run."""
    against = overheads(runs)
    if against is None:
        return EMPTY
    base, *others = against.rows
    lines = [_absolute(base), *map(_relative, others)]
    heads = ["method", "parameters\nper client", "of these\nprivate"]
    heads += ["KB\nup", "KB\ndown", "KB\nboth", "s per\nround"]
    about = (
        f"The line of {base.method} and the private parameters are absolute; the rest, marked x, "
        f"are ratios to {base.method} in the same cells and seeds. Bytes are payload per client "
        "and round. Seconds are wall time without evaluation; they depend on what else the machine "
        "was doing."
    )
    return heading(f"Overhead against {against.base}") + table(heads, lines) + note(about)


def _absolute(row: Overhead) -> list[str]:
    cost = row.cost
    return [
        row.method,
        count(cost.parameters),
        count(row.private),
        kilobytes(cost.bytes_up),
        kilobytes(cost.bytes_down),
        kilobytes(cost.bytes_both),
        f"{cost.seconds:.2f}",
    ]


def _relative(row: Overhead) -> list[str]:
    parameters, *others = [ratio(row.ratios[name]) for name in QUANTITIES]
    return [row.method, parameters, count(row.private), *others]
