"""Names of scores: those of all tasks, and what is refused."""

from __future__ import annotations

import pytest
import torch

from communis.core import metrics, tasks
from communis.core.errors import CommunisError
from communis.core.pooled import POOLED


def test_names_are_those_of_all_tasks() -> None:
    targets = {
        tasks.Classification(3): torch.zeros(1, dtype=torch.long),
        tasks.Counting(3): torch.zeros(1, dtype=torch.long),
        tasks.Pose(): torch.zeros(1, 51),
        tasks.Localisation(): torch.zeros(1, 2),
    }
    given = [
        score.metric
        for task, target in targets.items()
        for score in task.scores(torch.zeros(1, task.outputs), target)
        if score.label < 0
    ]
    assert {*given, POOLED} == set(metrics.NAMES)


@pytest.mark.parametrize("metric", ["", "macro_f1", "mean@gate", "heart.mae", "f1@own"])
def test_a_metric_that_may_exist_is_left_to_the_task(metric: str) -> None:
    metrics.refuse_unknown(metric)


def test_a_metric_that_no_task_has_is_refused() -> None:
    with pytest.raises(CommunisError, match=r"no metric 'acuracy' \(did you mean 'accuracy'\?\)"):
        metrics.refuse_unknown("acuracy")
    with pytest.raises(CommunisError, match=r"no metric 'heart.speed'; tasks have accuracy, "):
        metrics.refuse_unknown("heart.speed")
