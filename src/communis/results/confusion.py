"""Which classes are taken for which, from the test predictions that runs keep (`run.keep`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.selection import Select
from communis.results.compare import runs_by_method
from communis.results.finished import Finished
from communis.results.trained import Trained
from communis.run.learned import INDEX

BY_VALIDATION: tuple[Select, ...] = ("common", "client")  # selections for which `best` was kept


@dataclass(frozen=True)
class Confusion:
    """The test windows of one method, over all clients and seeds that keep predictions."""

    method: str
    labels: Sequence[str]
    windows: Array  # (actual class, predicted class)
    runs: int  # that keep predictions
    unusable: int  # windows whose scores are not finite
    problems: Sequence[str]  # predictions that cannot be read

    @property
    def shares(self) -> Array:
        """Of the windows of a class; NaN without windows."""
        support = self.windows.sum(1, keepdims=True)
        return np.where(support > 0, self.windows / np.maximum(support, 1), np.nan)


def kept_round(select: Select) -> str:
    """Which of the two rounds whose predictions are kept is nearest to the one that counts."""
    return "best" if select in BY_VALIDATION else "last"


def confusions(runs: Sequence[Finished], select: Select) -> list[Confusion]:
    """The methods of one cell that keep predictions of classes. Newcomers and attackers do not
    count."""
    found = []
    for method, group in runs_by_method(runs).items():
        labels = tuple(str(label) for label in group[0].fleet["labels"])
        windows = np.zeros((len(labels), len(labels)), np.int64)
        used, unusable, problems = 0, 0, []
        for run in group:
            try:
                read = _predictions(run, select, len(labels))
            except CommunisError as error:
                problems.append(str(error))
                continue
            if read is None:
                continue
            target, scores = read
            if not labels:  # classes that have no names
                labels = tuple(map(str, range(scores.shape[1])))
                windows = np.zeros((len(labels), len(labels)), np.int64)
            finite = np.isfinite(scores).all(1)
            np.add.at(windows, (target[finite], scores[finite].argmax(1)), 1)
            unusable += int((~finite).sum())
            used += 1
        if used or problems:
            found.append(Confusion(method, labels, windows, used, unusable, problems))
    return found


def _predictions(run: Finished, select: Select, classes: int) -> tuple[Array, Array] | None:
    """The targets and the scores of the members' test windows; None where there are none, or where
    they are not of these classes. classes: 0 if they have no names."""
    index = run.path / INDEX
    if not index.exists():
        if run.complete and run.config["run"].get("keep"):
            raise CommunisError(
                f"{index}: is gone, or the run was interrupted at its end; then `communis resume "
                f"{run.path}` writes it"
            )
        return None
    arrays = Trained(run.path).arrays(kept_round(select))
    if arrays is None:
        return None
    clients, target, scores = arrays
    counting = ~np.isin(clients, [*run.newcomers, *run.attackers])
    target, scores = target[counting], scores[counting]
    classes = classes or scores.shape[1]
    known = 1 < classes == scores.shape[1] and bool(((target >= 0) & (target < classes)).all())
    return (target, scores) if known and len(target) else None
