"""The names of scores, and the direction in which each is better. They are apart from `scores.py`,
because reports and refusals do without torch."""

from __future__ import annotations

from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.pooled import MEAN, POOLED

ERRORS = ("nll", "brier", "ece", "mae", "rmse", "mpjpe", "mpjpe_absolute")  # smaller is better
NAMES = ("accuracy", MEAN, POOLED, *ERRORS)  # of all tasks


def better(metric: str) -> int:
    """Returns 1 if a larger score is better, -1 if a smaller one is. Names with a view or a split,
    such as `nll@tempered` and `test.nll`, count as `nll`."""
    return -1 if metric.partition("@")[0].rpartition(".")[2] in ERRORS else 1


def refuse_unknown(metric: str) -> None:
    """Refuses a score that no task has. A name with @, such as mean@gate, may be a method's own; of
    several tasks, `heart.mae` is the score `mae` of the task `heart`."""
    name = metric.rpartition(".")[2]
    if name and "@" not in metric and name not in NAMES:
        hint = nearest(name, list(NAMES))
        raise CommunisError(f"no metric {metric!r}{hint}; tasks have {', '.join(NAMES)}")
