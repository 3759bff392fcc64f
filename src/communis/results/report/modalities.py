"""What a model makes of each modality alone, and of the rare ones."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.selection import Select
from communis.results.finished import Finished
from communis.results.modalities import ONLY, alone
from communis.results.report.html import heading, note, table
from communis.results.wording.numbers import number, plain
from communis.results.wording.scores import counts

COMMON = (
    "own: every client with its own sensors, on its own windows. The others are scores of the "
    "common model on the test windows of every client, whether it owns the sensor or not: all, "
    "with all sensors of the fleet; only, with nothing but that one. Methods that keep a part of "
    "the model on the client have no common model, and no such scores."
)
OWNERS = (
    "own: every client with its own sensors, on its own windows. only: the same clients with that "
    "sensor alone, means over those who own it among others. The common model was not scored on "
    "everybody's windows (run.eval_whole), so the scores of a sensor are those of its owners."
)


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """Empty where nothing of it was scored."""
    scores = alone(runs, metric, select)
    if scores is None:
        return EMPTY
    when = counts(select if scores.common else "last", metric)
    about = (
        f"{COMMON if scores.common else OWNERS} In {when}; mean ± standard deviation over seeds."
    )
    if scores.rare:
        about += f" rare: the mean over what the fewest clients own ({', '.join(scores.rare)})."
    columns = list(dict.fromkeys(name for row in scores.rows.values() for name in row))
    columns = [name for name in columns if name != "rare"] + ["rare"] * bool(scores.rare)
    heads = ["method", *(name.replace(ONLY, "only ", 1) for name in columns)]
    lines = [
        [method, *(number(row[name]) if name in row else "-" for name in columns)]
        for method, row in scores.rows.items()
    ]
    title = f"Test {plain(metric.partition('@')[0])} of each modality"
    return heading(title) + note(about) + table(heads, lines)
