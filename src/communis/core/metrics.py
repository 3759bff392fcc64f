"""Which direction of a score is better. Apart from `scores.py`, because reports are read without
torch."""

from __future__ import annotations

ERRORS = ("nll", "brier", "ece", "mae", "rmse", "mpjpe", "mpjpe_absolute")  # smaller is better


def better(metric: str) -> int:
    """1 where larger is better, -1 where smaller is; `nll@tempered` counts as `nll`, and so does
    `test.nll`."""
    return -1 if metric.partition("@")[0].rpartition(".")[2] in ERRORS else 1
