"""Tasks: what the loss is, what is scored, and how several targets travel in one tensor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from torch import Tensor

from communis import Score, Task
from communis.core.metrics import better
from communis.core.tasks import Classification, Counting, Localisation, Pose, Several, standardised
from tests.unit.small import random


def by_name(task: Task, prediction: Tensor, target: Tensor) -> dict[str, Score]:
    return {s.metric: s for s in task.scores(prediction, target) if s.label < 0}


def one_hot(target: Tensor, classes: int) -> Tensor:
    return 50.0 * F.one_hot(target, classes).float()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("task", [Classification(3), Counting(3)])
def test_predictions_that_are_no_numbers_score_nothing(task: Classification, wrong: float) -> None:
    """One is enough: `argmax` would find a class in it, and a model that diverged would score as
    one that guesses."""
    target = torch.arange(6) % 3
    prediction = one_hot(target, 3)
    prediction[4, 1] = wrong
    found = task.scores(prediction, target)
    assert all(math.isnan(score.value) for score in found)
    assert {score.support for score in found if score.label < 0} == {6}
    assert {score.label for score in found} == {-1, 0, 1, 2}


def test_a_class_that_is_ruled_out_is_scored() -> None:
    """The logarithm of a probability of zero is -Inf, beside others that are finite; but not in the
    place of all."""
    target = torch.tensor([0, 1])
    prediction = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    found = by_name(Classification(2), prediction, target)
    assert (found["accuracy"].value, found["nll"].value) == (1.0, 0.0)
    prediction[0, 0] = -math.inf
    assert math.isnan(by_name(Classification(2), prediction, target)["accuracy"].value)


SEVERAL = Several(
    ("who", "where", "many", "how"),
    (Classification(3), Localisation(2), Counting(4), Pose(joints=2)),
)


def packed(n: int = 5, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    parts = {
        "who": torch.arange(n) % 3,
        "where": random(n, 2, seed=seed),
        "many": torch.arange(n) % 4,
        "how": random(n, 6, seed=seed + 1),
    }
    columns = [parts["who"][:, None].float(), parts["where"], parts["many"][:, None].float()]
    return torch.cat([*columns, parts["how"]], 1), parts


def test_classification_scores_equal_scikit_learn() -> None:
    task, prediction, target = Classification(4), random(60, 4), torch.arange(60) % 3
    found = by_name(task, prediction, target)
    predicted, likelihood = prediction.argmax(1), prediction.double().softmax(1).numpy()
    assert list(found) == ["accuracy", "macro_f1", "nll", "brier", "ece"]
    assert found["accuracy"].value == pytest.approx(sk.accuracy_score(target, predicted))
    assert found["macro_f1"].value == pytest.approx(sk.f1_score(target, predicted, average="macro"))
    assert found["nll"].value == pytest.approx(sk.log_loss(target, likelihood, labels=range(4)))
    assert all(score.support == 60 for score in found.values())


def test_f1_is_given_for_the_classes_that_are_there_with_their_support() -> None:
    task = Classification(4)
    target = torch.tensor([0, 0, 0, 2, 2])
    predicted = torch.tensor([0, 0, 3, 2, 0])
    found = [s for s in task.scores(one_hot(predicted, 4), target) if s.metric == "f1"]
    assert [(s.label, s.support) for s in found] == [(0, 3), (2, 2)]
    # class 0: 2 hits of 3 predicted and 3 true; class 2: 1 hit of 1 and 2
    assert [s.value for s in found] == pytest.approx([4 / 6, 2 / 3])


def test_classification_loss_is_cross_entropy_for_flat_and_packed_targets() -> None:
    task, prediction, target = Classification(3), random(4, 3), torch.tensor([0, 2, 1, 1])
    expected = -prediction.log_softmax(1)[torch.arange(4), target].mean()
    torch.testing.assert_close(task.loss(prediction, target), expected)
    torch.testing.assert_close(task.loss(prediction, target[:, None].float()), expected)
    assert task.labels(target[:, None].float()).tolist() == [0, 2, 1, 1]
    assert (task.outputs, task.classes) == (3, 3)


def test_perfect_predictions_score_perfectly() -> None:
    target = torch.tensor([0, 1, 2, 2])
    found = by_name(Counting(3), one_hot(target, 3), target)
    assert {name: score.value for name, score in found.items()} == pytest.approx(
        {"accuracy": 1.0, "macro_f1": 1.0, "nll": 0.0, "brier": 0.0, "ece": 0.0, "mae": 0.0},
        abs=1e-12,
    )
    pose = random(3, 6)
    assert {s.value for s in Pose(joints=2).scores(pose, pose)} == {0.0}
    assert [s.value for s in Localisation().scores(pose[:, :2], pose[:, :2])] == [0.0]
    target, parts = packed()
    prediction = torch.cat(
        [one_hot(parts["who"], 3), parts["where"], one_hot(parts["many"], 4), parts["how"]], 1
    )
    found = by_name(SEVERAL, prediction, target)
    assert found["who.accuracy"].value == found["many.accuracy"].value == 1.0
    assert found["where.rmse"].value == found["how.mpjpe"].value == found["many.mae"].value == 0.0
    assert float(SEVERAL.loss(prediction, target)) == pytest.approx(0.0, abs=1e-12)


def test_counting_adds_the_error_of_the_likeliest_count() -> None:
    predicted, target = torch.tensor([0, 3, 2, 2]), torch.tensor([1, 0, 2, 2])
    found = by_name(Counting(4), one_hot(predicted, 4), target)
    assert found["mae"].value == pytest.approx((1 + 3) / 4)
    assert found["mae"].support == 4
    assert found["accuracy"].value == 0.5
    assert Counting(4).loss(one_hot(predicted, 4), target) == Classification(4).loss(
        one_hot(predicted, 4), target
    )


def test_pose_scores_and_loss_by_hand() -> None:
    task = Pose(joints=3, root=1)
    target = torch.zeros(1, 9)
    prediction = torch.tensor([[3.0, 4.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    found = by_name(task, prediction, target)
    # joint distances sqrt(26), 1 and 1; from joint 1: 5, 0 and 0 (from joint 0 it were 0, 5, 5)
    assert found["mpjpe_absolute"].value == pytest.approx((math.sqrt(26) + 2) / 3)
    assert found["mpjpe"].value == pytest.approx(5 / 3)
    assert found["mpjpe"].support == 1
    assert float(task.loss(prediction, target)) == pytest.approx((9 + 16 + 1 + 1 + 1) / 9)
    assert (task.outputs, task.columns, task.classes) == (9, 9, 0)
    assert Pose().outputs == 51


def test_localisation_scores_and_loss_by_hand() -> None:
    task = Localisation(2)
    prediction, target = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0]] * 2)
    found = by_name(task, prediction, target)
    assert found["rmse"].value == pytest.approx(math.sqrt((25 + 2) / 2))
    assert found["rmse"].support == 2
    assert float(task.loss(prediction, target)) == pytest.approx(27 / 4)
    assert (task.outputs, task.columns, task.classes) == (2, 2, 0)


@pytest.mark.parametrize("task", [Pose(joints=2), Localisation()])
def test_where_there_is_no_class_asking_for_one_is_an_error(task: Task) -> None:
    with pytest.raises(TypeError, match="no class; choose a method"):
        task.labels(torch.zeros(2, task.outputs))


def test_several_tasks_split_predictions_and_targets_in_order() -> None:
    target, parts = packed()
    prediction = random(5, SEVERAL.outputs, seed=7)
    assert SEVERAL.outputs == 3 + 2 + 4 + 6
    assert target.shape == (5, 1 + 2 + 1 + 6)
    who, where, many, how = torch.split(prediction, [3, 2, 4, 6], 1)
    expected = (
        F.cross_entropy(who, parts["who"])
        + F.mse_loss(where, parts["where"])
        + F.cross_entropy(many, parts["many"])
        + F.mse_loss(how, parts["how"])
    )
    torch.testing.assert_close(SEVERAL.loss(prediction, target), expected)
    alone = {
        **{f"who.{k}": s for k, s in by_name(Classification(3), who, parts["who"]).items()},
        **{f"where.{k}": s for k, s in by_name(Localisation(), where, parts["where"]).items()},
        **{f"many.{k}": s for k, s in by_name(Counting(4), many, parts["many"]).items()},
        **{f"how.{k}": s for k, s in by_name(Pose(2), how.contiguous(), parts["how"]).items()},
    }
    found = by_name(SEVERAL, prediction, target)
    assert list(found) == list(alone)
    for name, score in found.items():
        assert score.value == pytest.approx(alone[name].value), name
        assert score.support == 5
    per_class = [s for s in SEVERAL.scores(prediction, target) if s.label >= 0]
    assert {s.metric for s in per_class} == {
        f"{task}.{score}" for task in ("who", "many") for score in ("f1", "hits", "said")
    }
    assert {s.label for s in per_class if s.metric == "many.f1"} == {0, 1, 2, 3}


def test_weights_multiply_the_losses() -> None:
    target, parts = packed()
    prediction = random(5, SEVERAL.outputs, seed=7)
    weighted = Several(SEVERAL.names, SEVERAL.tasks, (0.0, 2.0, 0.0, 0.5))
    _, where, _, how = torch.split(prediction, [3, 2, 4, 6], 1)
    expected = 2 * F.mse_loss(where, parts["where"]) + 0.5 * F.mse_loss(how, parts["how"])
    torch.testing.assert_close(weighted.loss(prediction, target), expected)


def test_a_wrong_number_of_weights_is_an_error() -> None:
    target, _ = packed()
    short = Several(SEVERAL.names, SEVERAL.tasks, (1.0, 2.0))
    with pytest.raises(ValueError, match="argument"):
        short.loss(random(5, SEVERAL.outputs), target)


def test_gradients_reach_every_part_of_the_prediction() -> None:
    target, _ = packed()
    prediction = random(5, SEVERAL.outputs).requires_grad_()
    SEVERAL.loss(prediction, target).backward()
    assert prediction.grad is not None
    assert bool((prediction.grad.abs().sum(0) > 0).all())


def test_classes_and_labels_are_those_of_the_first_task_that_has_some() -> None:
    target, parts = packed()
    assert SEVERAL.classes == 3
    assert SEVERAL.labels(target).tolist() == parts["who"].tolist()
    later = Several(("where", "many"), (Localisation(), Counting(4)))
    columns = torch.cat([parts["where"], parts["many"][:, None].float()], 1)
    assert later.classes == 4
    assert later.labels(columns).tolist() == parts["many"].tolist()
    assert later.labels(columns).dtype is torch.int64


def test_several_tasks_without_classes_say_so() -> None:
    task = Several(("where", "how"), (Localisation(), Pose(joints=2)))
    assert task.classes == 0
    with pytest.raises(TypeError, match="none of these tasks has classes"):
        task.labels(torch.zeros(3, 8))
    prediction, target = random(3, 8), random(3, 8, seed=1)
    assert bool(task.loss(prediction, target).isfinite())
    assert [s.metric for s in task.scores(prediction, target)] == [
        "where.rmse",
        "how.mpjpe",
        "how.mpjpe_absolute",
    ]


def test_a_class_that_no_sample_has_does_no_harm() -> None:
    task = Classification(5)
    prediction, target = random(4, 5), torch.tensor([1, 1, 1, 1])
    assert bool(task.loss(prediction, target).isfinite())
    assert all(math.isfinite(s.value) for s in task.scores(prediction, target))


def test_standardised_targets_are_scored_in_metres() -> None:
    """Columns 1 and 2 are a place with mean (2, 4) and deviations of 1 and 3 metres, whose mean
    square is 5. A model that says 0 says the mean."""
    task = Several(("class", "place"), (Classification(2), Localisation(2)))
    target = torch.tensor([[0.0, 1.0, 1.0], [1.0, 3.0, 7.0]])
    found = standardised(task, target)
    assert found.tasks[0] == Classification(2)
    place = found.tasks[1]
    assert isinstance(place, Localisation)
    assert place.centre == (2.0, 4.0)
    assert place.scale == pytest.approx(5**0.5)
    said = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    (rmse,) = [s.value for s in found.scores(said, target) if s.metric == "place.rmse"]
    off = (5**0.5 - 1) ** 2 + 9  # the second place is guessed at (2 + sqrt 5, 4)
    assert rmse == pytest.approx(((1 + 9 + off) / 2) ** 0.5)
    assert float(place.loss(torch.zeros(2, 2), target[:, 1:])) == pytest.approx(1.0)
    still = standardised(Localisation(1), torch.ones(3, 1))
    assert still.scale == 1.0  # nothing moves


def test_metres_are_the_default() -> None:
    place = Localisation(2)
    said, true = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    assert float(place.loss(said, true)) == 2.0
    assert place.scores(said, true)[0].value == 2.0


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
def test_standardising_does_not_depend_on_the_unit(size: float) -> None:
    """Nanometres or kilometres; what stands still in float32 far from the origin is not scaled."""
    target = size * torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    found = standardised(Localisation(2), target)
    assert found.scale == pytest.approx(size * math.sqrt(0.5), rel=1e-6)  # float32 targets
    still = size * torch.tensor([[3.0], [3.0 + 2e-7], [3.0]])
    assert standardised(Localisation(1), still).scale == 1.0


TASKS: list[tuple[Any, torch.Tensor, torch.Tensor]] = [
    (Classification(3), torch.eye(3) * 9, torch.tensor([0, 1, 2])),
    (Counting(3), torch.eye(3) * 9, torch.tensor([0, 1, 2])),
    (Pose(joints=2), torch.arange(18.0).view(3, 6), torch.arange(18.0).view(3, 6)),
    (Localisation(dimensions=2), torch.arange(6.0).view(3, 2), torch.arange(6.0).view(3, 2)),
]


@pytest.mark.parametrize(("task", "right", "target"), TASKS)
def test_every_score_says_which_direction_is_better(
    task: Any, right: torch.Tensor, target: torch.Tensor
) -> None:
    """A metric that is missing from `metrics.ERRORS` would rank the worst prediction first."""
    wrong = right.roll(1, dims=1) ** 2
    good, bad = (
        {s.metric: s.value for s in task.scores(said, target) if s.label < 0}
        for said in (right, wrong)
    )
    assert good
    for metric, value in good.items():
        assert better(metric) * value > better(metric) * bad[metric], metric
