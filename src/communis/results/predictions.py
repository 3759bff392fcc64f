"""What a method's other views of the same windows would have scored, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from communis.results.modalities import whole

METRICS = ("macro_f1", "accuracy", "nll", "brier", "ece")
SEEN = "seen"  # no other prediction: the same one, over the windows that some sensor saw
MEASURE = "mean@"  # what the name of a measure's mean begins with


def after(names: Sequence[str]) -> list[str]:
    """What follows the @ in names that have one."""
    found = dict.fromkeys(name.partition("@")[2] for name in names if "@" in name)
    return [view for view in found if not whole(view)]
