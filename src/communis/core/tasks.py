"""Prediction tasks: classification, counting, pose, localisation, or several of them at once.

A prediction is one tensor (B, outputs). A target is (B,) int64 for classification and counting, and
(B, columns) float32 otherwise. `Several` holds the targets of its tasks side by side as float32
columns and splits predictions in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import scores
from communis.core.contract import Score, Task
from communis.core.pooled import HITS, SAID

CONSTANT = 1e-6  # values that vary by less, relative to their mean, are a rounded float32 constant


@dataclass(frozen=True)
class Classification:
    """One of `classes`. Scores: accuracy, macro-F1, NLL, Brier, ECE; and, per class, F1 and the
    counts from which the pooled macro-F1 is computed (pooled.py). If any prediction is no
    distribution over the classes, all scores are NaN, which marks a model that diverged."""

    classes: int
    columns = 1  # of a packed target

    @property
    def outputs(self) -> int:
        return self.classes

    def labels(self, target: Tensor) -> Tensor:
        return target.reshape(len(target)).long()

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(prediction, self.labels(target))

    def scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        given = self._scores(prediction, target)
        if scores.probable(prediction):
            return given
        return [replace(score, value=math.nan) for score in given]

    def _scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        actual, n = self.labels(target), len(target)
        table = scores.confusion(prediction.argmax(1), actual, self.classes)
        by_class, support = scores.f1_by_class(table), table.sum(1)
        hits = table.diag().tolist()
        said = table.sum(0).tolist()
        f1 = by_class.tolist()
        there = support.tolist()
        return [
            Score("accuracy", scores.accuracy(table), support=n),
            Score("macro_f1", scores.macro_f1(table), support=n),
            Score("nll", scores.nll(prediction, actual), support=n),
            Score("brier", scores.brier(prediction, actual), support=n),
            Score("ece", scores.ece(prediction, actual), support=n),
            *(Score("f1", f1[c], c, there[c]) for c in range(self.classes) if there[c]),
            *(
                Score(name, float(count[c]), c, there[c])
                for name, count in ((HITS, hits), (SAID, said))
                for c in range(self.classes)
                if there[c] or said[c]
            ),
        ]


@dataclass(frozen=True)
class Counting(Classification):
    """A number from 0 to classes - 1, predicted by classification. The scores include the mean
    absolute error."""

    def _scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        error = scores.mae(prediction.argmax(1), self.labels(target))
        return [*super()._scores(prediction, target), Score("mae", error, support=len(target))]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Targets in metres. Models predict the difference from `centre` in units of `scale`."""

    centre: tuple[float, ...] = ()  # one number per column; empty: 0
    scale: float = 1.0  # metres

    def metres(self, prediction: Tensor) -> Tensor:
        return prediction * self.scale + prediction.new_tensor(self.centre or (0.0,))

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean squared error in units of `scale`."""
        return F.mse_loss(self.metres(prediction), target) / self.scale**2


@dataclass(frozen=True)
class Pose(Metric):
    """Joint positions, (B, joints * 3). Scores: MPJPE relative to the root joint, and absolute."""

    joints: int = 17
    root: int = 0
    classes = 0

    @property
    def outputs(self) -> int:
        return 3 * self.joints

    @property
    def columns(self) -> int:
        return 3 * self.joints

    def labels(self, target: Tensor) -> Tensor:
        raise TypeError("a pose has no class; choose a method that does not need one")

    def scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        both = (self.metres(prediction), target)
        predicted, actual = (t.view(len(t), self.joints, 3) for t in both)
        return [
            Score("mpjpe", scores.mpjpe(predicted, actual, self.root), support=len(target)),
            Score("mpjpe_absolute", scores.mpjpe(predicted, actual), support=len(target)),
        ]


@dataclass(frozen=True)
class Localisation(Metric):
    """A point in space, (B, dimensions). Score: RMSE of the distance."""

    dimensions: int = 2
    classes = 0

    @property
    def outputs(self) -> int:
        return self.dimensions

    @property
    def columns(self) -> int:
        return self.dimensions

    def labels(self, target: Tensor) -> Tensor:
        raise TypeError("a position has no class; choose a method that does not need one")

    def scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        error = scores.rmse(self.metres(prediction), target)
        return [Score("rmse", error, support=len(target))]


Single = Classification | Counting | Pose | Localisation


@dataclass(frozen=True)
class Several:
    """Named tasks of one model. The loss is their weighted sum. Scores are named `task.metric`.
    Classes are those of the first classification task."""

    names: tuple[str, ...]
    tasks: tuple[Single, ...]
    weights: tuple[float, ...] = ()  # one per task; all 1 if empty

    @property
    def outputs(self) -> int:
        return sum(task.outputs for task in self.tasks)

    @property
    def columns(self) -> int:
        return sum(task.columns for task in self.tasks)

    @property
    def classes(self) -> int:
        return next((task.classes for task in self.tasks if task.classes), 0)

    def labels(self, target: Tensor) -> Tensor:
        for task, part in zip(self.tasks, self._targets(target), strict=True):
            if task.classes:
                return task.labels(part)
        raise TypeError("none of these tasks has classes; choose a method that does not need them")

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        weights = self.weights or (1.0,) * len(self.tasks)
        parts = zip(
            weights, self.tasks, self._predictions(prediction), self._targets(target), strict=True
        )
        return torch.stack([w * task.loss(p, t) for w, task, p, t in parts]).sum()

    def scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]:
        parts = zip(
            self.names,
            self.tasks,
            self._predictions(prediction),
            self._targets(target),
            strict=True,
        )
        return [
            Score(f"{name}.{s.metric}", s.value, s.label, s.support)
            for name, task, p, t in parts
            for s in task.scores(p, t)
        ]

    def _predictions(self, prediction: Tensor) -> Iterator[Tensor]:
        return iter(torch.split(prediction, [task.outputs for task in self.tasks], 1))

    def _targets(self, target: Tensor) -> Iterator[Tensor]:
        return iter(torch.split(target, [task.columns for task in self.tasks], 1))


def written(task: object) -> dict[str, Any]:
    """Returns a task as a table for JSON files, which `read` reads. Empty for a task of another
    library, which cannot be read."""
    if isinstance(task, Several):
        parts = [written(part) for part in task.tasks]
        return {"kind": "Several", "names": task.names, "tasks": parts, "weights": task.weights}
    if type(task) not in _KINDS.values():
        return {}
    return {"kind": type(task).__name__, **vars(task)}


def read(table: Mapping[str, Any]) -> Task:
    """Returns the task that `written` wrote."""
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    kind = str(settings.pop("kind"))
    if kind == "Several":
        settings["tasks"] = tuple(read(part) for part in settings["tasks"])
        return Several(**settings)
    task: Task = _KINDS[kind](**settings)
    return task


_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Classification, Counting, Pose, Localisation)
}


def scaled(task: object) -> bool:
    """Whether a target is standardised."""
    parts = task.tasks if isinstance(task, Several) else (task,)
    return any(isinstance(part, Metric) and bool(part.centre) for part in parts)


T = TypeVar("T")


def standardised(task: T, target: Tensor) -> T:
    """Returns the task with standardised targets: the centre is the mean of these targets, which
    are those of training windows, and the scale their root mean square deviation. Classes are
    unchanged."""
    if isinstance(task, Several):
        parts = zip(task.tasks, task._targets(target), strict=True)
        return replace(task, tasks=tuple(standardised(own, part) for own, part in parts))
    if isinstance(task, Metric):
        mean = target.double().mean(0)
        scale = float((target - mean).square().mean().sqrt())
        varies = scale > CONSTANT * float(mean.abs().max())
        return replace(task, centre=tuple(mean.tolist()), scale=scale if varies else 1.0)
    return task
