"""Scores against scikit-learn, and against loops that can be read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from communis.core import scores
from tests.unit.small import random

CLASSES = 6


def predictions(n: int = 300, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits that are right more often than chance, and the truth."""
    rng = np.random.default_rng(seed)
    actual = torch.from_numpy(rng.integers(0, CLASSES, n))
    logits = scale * random(n, CLASSES, seed=seed)
    logits[torch.arange(n), actual] += 1.0
    return logits, actual


def table(predicted: list[int] | Tensor, actual: list[int] | Tensor, classes: int) -> Tensor:
    return scores.confusion(torch.as_tensor(predicted), torch.as_tensor(actual), classes)


def test_confusion_has_actual_rows_and_predicted_columns() -> None:
    found = table([0, 1, 1, 2, 2, 2], [0, 0, 1, 2, 2, 1], 4)
    assert found.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    logits, actual = predictions()
    ours = scores.confusion(logits.argmax(1), actual, CLASSES)
    assert np.array_equal(ours, sk.confusion_matrix(actual, logits.argmax(1)))


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_and_f1_equal_scikit_learn(seed: int) -> None:
    logits, actual = predictions(seed=seed)
    predicted = logits.argmax(1)
    counts = scores.confusion(predicted, actual, CLASSES)
    assert scores.accuracy(counts) == pytest.approx(sk.accuracy_score(actual, predicted), rel=1e-6)
    macro = sk.f1_score(actual, predicted, average="macro")
    assert scores.macro_f1(counts) == pytest.approx(macro, rel=1e-12)
    by_class = sk.f1_score(actual, predicted, average=None)
    assert scores.f1_by_class(counts).tolist() == pytest.approx(by_class.tolist(), rel=1e-12)


def test_accuracy_is_exact() -> None:
    assert scores.accuracy(table([0, 1, 1], [0, 1, 0], 2)) == 2 / 3


@pytest.mark.parametrize(
    ("predicted", "actual"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1]),  # classes 2 and 3 are nowhere
        ([0, 2, 2, 0], [0, 0, 1, 1]),  # 1 is never predicted, 2 never true, 3 nowhere
        ([3, 3, 3, 3], [0, 1, 2, 0]),  # nothing is right
        ([1, 1, 1], [1, 1, 1]),
        ([2], [0]),
    ],
)
def test_absent_classes_count_as_scikit_learn_counts_them(
    predicted: list[int], actual: list[int]
) -> None:
    counts = table(predicted, actual, 4)
    expected = sk.f1_score(actual, predicted, average="macro", zero_division=0)
    assert scores.macro_f1(counts) == pytest.approx(expected, abs=1e-12)
    assert scores.accuracy(counts) == pytest.approx(sk.accuracy_score(actual, predicted))
    by_class = sk.f1_score(actual, predicted, average=None, labels=range(4), zero_division=0)
    assert scores.f1_by_class(counts).tolist() == pytest.approx(by_class.tolist())


def test_an_empty_table_scores_zero_and_not_nan() -> None:
    nothing = table(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 3)
    assert scores.accuracy(nothing) == 0.0
    assert scores.macro_f1(nothing) == 0.0
    assert scores.f1_by_class(nothing).tolist() == [0.0] * 3


@pytest.mark.parametrize("scale", [0.1, 2.0, 5.0])
def test_nll_equals_log_loss(scale: float) -> None:
    logits, actual = predictions(scale=scale)
    likelihood = logits.double().softmax(1).numpy()
    expected = sk.log_loss(actual, likelihood, labels=range(CLASSES))
    assert scores.nll(logits, actual) == pytest.approx(expected, rel=1e-6)


def test_nll_of_a_confident_mistake_is_large_and_finite() -> None:
    assert scores.nll(torch.tensor([[1000.0, 0.0]]), torch.tensor([1])) == pytest.approx(1000.0)
    assert scores.nll(torch.zeros(3, 4), torch.tensor([0, 1, 2])) == pytest.approx(math.log(4))


def test_brier_by_hand_and_by_brute_force() -> None:
    even = torch.zeros(1, 2)  # (1/2 - 1)^2 + (1/2)^2
    assert scores.brier(even, torch.tensor([0])) == pytest.approx(0.5)
    wrong = torch.tensor([[100.0, 0.0]])
    assert scores.brier(wrong, torch.tensor([1])) == pytest.approx(2.0)
    logits, actual = predictions()
    total = 0.0
    for row, y in zip(logits.double().softmax(1).tolist(), actual.tolist(), strict=True):
        total += sum((p - (c == y)) ** 2 for c, p in enumerate(row))
    assert scores.brier(logits, actual) == pytest.approx(total / len(actual), rel=1e-12)


def test_brier_of_two_classes_is_twice_that_of_scikit_learn() -> None:
    """They count one class, we count both, as Brier did."""
    logits, actual = random(100, 2), torch.arange(100) % 2
    binary = sk.brier_score_loss(actual, logits.double().softmax(1)[:, 1].numpy())
    assert scores.brier(logits, actual) == pytest.approx(2 * binary, rel=1e-9)


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize("scale", [0.3, 2.0, 10.0])
def test_ece_by_brute_force(bins: int, scale: float) -> None:
    logits, actual = predictions(500, scale=scale)
    confidence, predicted = logits.double().softmax(1).max(1)
    expected = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            right = (predicted == actual)[inside].double().mean()
            gap = abs(right.item() - confidence[inside].mean().item())
            expected += inside.sum().item() / 500 * gap
    assert scores.ece(logits, actual, bins) == pytest.approx(expected, abs=1e-12)
    assert expected > 0


def test_ece_of_a_perfectly_sure_and_right_or_wrong_model() -> None:
    sure = torch.tensor([[1000.0, 0.0]] * 4)
    assert scores.ece(sure, torch.tensor([0, 0, 0, 0])) == 0.0
    assert scores.ece(sure, torch.tensor([1, 1, 1, 1])) == pytest.approx(1.0)
    assert scores.ece(sure, torch.tensor([0, 1, 0, 0])) == pytest.approx(0.25)


def test_ece_does_not_let_bins_cancel() -> None:
    """Half is over-sure and half is under-sure: the mean gap is zero, the error is not."""
    over = torch.tensor([[math.log(9.0), 0.0]] * 10)  # 0.9 sure, 8 of 10 right
    under = torch.tensor([[math.log(1.5), 0.0]] * 10)  # 0.6 sure, 7 of 10 right
    actual = torch.tensor([0] * 8 + [1] * 2 + [0] * 7 + [1] * 3)
    assert scores.ece(torch.cat([over, under]), actual) == pytest.approx(0.1, abs=1e-6)


def test_mae_by_hand() -> None:
    assert scores.mae(torch.tensor([0, 3, 5]), torch.tensor([1, 3, 1])) == pytest.approx(5 / 3)
    assert scores.mae(torch.tensor([2]), torch.tensor([2])) == 0.0


def test_rmse_by_hand() -> None:
    predicted, actual = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2)
    # squared distances 25 and 0
    assert scores.rmse(predicted, actual) == pytest.approx(math.sqrt(12.5))
    assert scores.rmse(actual, actual) == 0.0


def test_mpjpe_by_hand_absolute_and_from_the_root() -> None:
    actual = torch.zeros(1, 3, 3)
    predicted = torch.tensor([[[0.0, 0.0, 2.0], [3.0, 4.0, 2.0], [0.0, 0.0, 0.0]]])
    # distances 2, sqrt(29), 0; from joint 0: 0, 5, 2; from joint 2 as absolute
    assert scores.mpjpe(predicted, actual) == pytest.approx((2 + math.sqrt(29)) / 3)
    assert scores.mpjpe(predicted, actual, 0) == pytest.approx((0 + 5 + 2) / 3)
    assert scores.mpjpe(predicted, actual, 2) == pytest.approx((2 + math.sqrt(29)) / 3)


def test_mpjpe_from_the_root_ignores_where_the_body_stands() -> None:
    actual = random(4, 5, 3)
    moved = actual + torch.tensor([1.0, -2.0, 2.0])
    assert scores.mpjpe(moved, actual, 1) == pytest.approx(0.0, abs=1e-6)
    assert scores.mpjpe(moved, actual) == pytest.approx(3.0, rel=1e-5)
