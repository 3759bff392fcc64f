"""Numbers and verdicts in words, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from communis.compare import Row, cells, metrics
from communis.finished import Finished
from communis.metrics.correlation import Correlation
from communis.metrics.estimate import Estimate
from communis.metrics.selection import Select

# Which round's scores count.
COUNTS: dict[Select, str] = {
    "last": "the last evaluated round",
    "common": "the evaluated round with the best mean validation score",
    "client": "the best round of every client by its own validation score",
}


def scope(runs: Sequence[Finished]) -> str:
    """One sentence on what was compared."""
    first = runs[0]
    seeds = sorted({run.seed for run in runs})
    clients = len(first.by_client(found[0])) if (found := metrics(runs)) else 0
    unfinished = sum(not run.complete for run in runs)
    note = f" {unfinished} of {len(runs)} runs are unfinished." if unfinished else ""
    grid = f"{n} cells, " if (n := len(cells(runs))) > 1 else ""
    return (
        f"Data {first.config['data']['name']}, {grid}{clients} clients, "
        f"{first.config['run']['rounds']} rounds, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} "
        f"({', '.join(map(str, seeds))}).{note}"
    )


def warnings(runs: Sequence[Finished]) -> list[str]:
    """What the data themselves warn a reader of the scores about."""
    return sorted({note for run in runs for note in run.fleet.get("notes", ())})


def how_to_read(table: Sequence[Row], metric: str, select: Select = "last") -> str:
    """What the numbers of the summary mean and which differences count."""
    text = f"{_scores(select)} Bytes are payload per client and round."
    if len(table) == 1:
        return text
    return f"{text} {_differences(table[0].method, table[0].scores[metric].seeds)}"


def how_to_read_cells(best: str, seeds: int, select: Select) -> str:
    """The same for the table of a grid; best: the method with the best average."""
    return (
        f"{_scores(select)} The average is taken over cells first, seed by seed, then over seeds. "
        "* marks the best method of a cell, ~ those that are within the spread of it. "
        f"{_differences(best, seeds)}"
    )


def _scores(select: Select) -> str:
    return (
        f"Scores are means over clients in {COUNTS[select]}, then mean ± standard deviation over "
        "seeds. Choosing the round per client favours personalised methods; to choose it so for "
        "them and in common for the others, as the FedDUET paper does, is biased."
    )


def _differences(best: str, seeds: int) -> str:
    if seeds < 2:
        return "With one seed there is no spread, and no difference can be judged."
    return (
        f"Differences to {best} are paired by seed, with their 95 % interval; a method whose "
        "interval holds zero is within the spread and cannot be told apart. "
        "Several methods are compared at once, so read a single verdict with care."
    )


def plain(metric: str) -> str:
    """A metric's name for people."""
    name, _, view = metric.partition("@")
    return f"{name.replace('_', ' ')} ({view})" if view else name.replace("_", " ")


def number(estimate: Estimate, digits: int = 3) -> str:
    if estimate.diverged:
        return f"diverged in {estimate.diverged} of {estimate.seeds}"
    if not math.isfinite(estimate.mean):
        return "-"
    spread = f" ± {estimate.spread:.{digits}f}" if math.isfinite(estimate.spread) else ""
    return f"{estimate.mean:.{digits}f}{spread}"


def versus(difference: Estimate, verdict: str) -> str:
    """The paired difference to the best method, in words."""
    if not verdict:
        return "best"
    if not math.isfinite(difference.mean):
        return verdict
    if not math.isfinite(difference.half_width):
        return f"{difference.mean:+.3f} ({verdict})"
    return f"{difference.mean:+.3f} ± {difference.half_width:.3f}, {verdict}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:,.1f}"


def count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def ratio(value: float, base: float) -> str:
    return f"{value / base:.2f} x" if base > 0 and math.isfinite(value / base) else "-"


def correlated(found: Correlation) -> list[str]:
    """rho and p."""
    if not math.isfinite(found.rho):
        return ["-", "-"]
    p = "-" if math.isnan(found.p) else "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
    return [f"{found.rho:+.2f}", p]


def default_metric(runs: Sequence[Finished]) -> str:
    """Accuracy where there is one, else the first metric."""
    found = metrics(runs)
    if not found:
        return "accuracy"
    return "accuracy" if "accuracy" in found else found[0]
