"""The direction in which each score is better. It is apart from `scores.py`, because reports are
written without torch."""

from __future__ import annotations

ERRORS = ("nll", "brier", "ece", "mae", "rmse", "mpjpe", "mpjpe_absolute")  # smaller is better


def better(metric: str) -> int:
    """Returns 1 if a larger score is better, -1 if a smaller one is. Names with a view or a split,
    such as `nll@tempered` and `test.nll`, count as `nll`."""
    return -1 if metric.partition("@")[0].rpartition(".")[2] in ERRORS else 1
