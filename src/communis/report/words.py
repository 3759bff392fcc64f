"""Numbers and verdicts in words, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from communis.compare import Estimate, Finished, Row, metrics


def scope(runs: Sequence[Finished]) -> str:
    """One sentence on what was compared."""
    first = runs[0]
    seeds = sorted({run.seed for run in runs})
    clients = first.scores["client"].nunique()
    unfinished = sum(not run.complete for run in runs)
    note = f" {unfinished} of {len(runs)} runs are unfinished." if unfinished else ""
    return (
        f"Data {first.config['data']['name']}, {clients} clients, "
        f"{first.config['run']['rounds']} rounds, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} "
        f"({', '.join(map(str, seeds))}).{note}"
    )


def warnings(runs: Sequence[Finished]) -> list[str]:
    """What the data themselves warn a reader of the scores about."""
    return sorted({note for run in runs for note in run.fleet.get("notes", ())})


def how_to_read(table: Sequence[Row], metric: str) -> str:
    """What the numbers of the summary mean and which differences count."""
    best = table[0].method
    tail = (
        "With one seed there is no spread, and no difference can be judged."
        if table[0].scores[metric].seeds < 2
        else f"Differences to {best} are paired by seed, with their 95 % interval; a method whose "
        "interval holds zero is within the spread and cannot be told apart. "
        "Several methods are compared at once, so read a single verdict with care."
    )
    return (
        "Scores are means over clients after the last round, then mean ± standard deviation over "
        f"seeds. Bytes are payload per client and round. {tail}"
    )


def number(estimate: Estimate, digits: int = 3) -> str:
    if estimate.diverged:
        return f"diverged in {estimate.diverged} of {estimate.seeds}"
    if not math.isfinite(estimate.mean):
        return "-"
    spread = f" ± {estimate.spread:.{digits}f}" if math.isfinite(estimate.spread) else ""
    return f"{estimate.mean:.{digits}f}{spread}"


def versus(row: Row) -> str:
    """The paired difference to the best method, in words."""
    if not row.verdict:
        return "best"
    if not math.isfinite(row.difference.mean):
        return row.verdict
    if not math.isfinite(row.difference.half_width):
        return f"{row.difference.mean:+.3f} ({row.verdict})"
    return f"{row.difference.mean:+.3f} ± {row.difference.half_width:.3f}, {row.verdict}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:,.1f}"


def default_metric(runs: Sequence[Finished]) -> str:
    """Accuracy where there is one, else the first metric."""
    found = metrics(runs)
    if not found:
        return "accuracy"
    return "accuracy" if "accuracy" in found else found[0]
