"""Scores of one set of predictions. All functions take whole tensors and return floats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def confusion(predicted: Tensor, actual: Tensor, classes: int) -> Tensor:
    """Returns (classes, classes) counts; rows are actual classes, columns predicted ones."""
    return torch.bincount(actual * classes + predicted, minlength=classes * classes).view(
        classes, classes
    )


def probable(logits: Tensor) -> bool:
    """Whether every row is a distribution over classes. A row with -Inf and a finite number is one:
    -Inf is a probability of zero. A row with NaN, with Inf, or with -Inf only is none, although
    `argmax` finds a class in it."""
    return bool(torch.isfinite(logits.double().softmax(1)).all())


def accuracy(table: Tensor) -> float:
    return float(table.diag().sum().double() / table.sum().clamp_min(1))


def f1_by_class(table: Tensor) -> Tensor:
    """F1 of every class; 0 for classes that are neither present nor predicted."""
    hits = table.diag().double()
    return 2 * hits / (table.sum(0) + table.sum(1)).clamp_min(1)


def macro_f1(table: Tensor) -> float:
    """Mean F1 over the classes that are present or predicted, as in scikit-learn by default."""
    seen = (table.sum(0) + table.sum(1)) > 0
    if not bool(seen.any()):
        return 0.0
    return float(f1_by_class(table)[seen].mean())


def nll(logits: Tensor, actual: Tensor) -> float:
    """Mean negative log-likelihood of the actual class."""
    return float(F.cross_entropy(logits.double(), actual))


def brier(logits: Tensor, actual: Tensor) -> float:
    """Mean squared distance between the class probabilities and the one-hot truth, from 0 (best) to
    2."""
    probabilities = logits.double().softmax(1)
    return float((probabilities - F.one_hot(actual, logits.shape[1])).square().sum(1).mean())


def ece(logits: Tensor, actual: Tensor, bins: int = 15) -> float:
    """Expected calibration error of the predicted class, with bins of equal width."""
    confidence, predicted = logits.double().softmax(1).max(1)
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = (predicted == actual).double() - confidence
    gaps = torch.zeros(bins, dtype=torch.double).index_add_(0, bin_of, gap)
    return float(gaps.abs().sum() / max(1, len(actual)))


def mae(predicted: Tensor, actual: Tensor) -> float:
    """Mean absolute error."""
    return float((predicted.double() - actual).abs().mean())


def rmse(predicted: Tensor, actual: Tensor) -> float:
    """Root of the mean squared distance between points (B, dimensions)."""
    return float((predicted.double() - actual).square().sum(-1).mean().sqrt())


def mpjpe(predicted: Tensor, actual: Tensor, root: int | None = None) -> float:
    """Mean distance per joint between poses (B, joints, 3). root: a joint that is moved to the
    origin in both poses first."""
    if root is not None:
        predicted = predicted - predicted[:, root : root + 1]
        actual = actual - actual[:, root : root + 1]
    return float((predicted.double() - actual).norm(dim=-1).mean())
