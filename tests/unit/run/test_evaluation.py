"""Evaluation on the client: what is scored, windows that no sensor saw, other views."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Client, FedAvg, Plan, Run, State
from communis.core.contract import Prediction
from communis.core.tasks import Localisation
from communis.run.backends.executor import frequencies, guessed
from tests.unit.small import TINY, bound, client, windows

TARGET = np.array([0, 2, 2, 1, 2, 0, 1, 2, 0, 0])  # in training the most frequent class is 2


def some_unseen(**changes: Any) -> Any:
    """Five windows to train, five to test; no sensor saw the last two."""
    seen = np.arange(10) < 8
    present = {"a": seen, "b": seen & (np.arange(10) != 6)}
    return windows((0,) * 5 + (2,) * 5, **({"present": present, "target": TARGET} | changes))


@dataclass(frozen=True)
class Sure(FedAvg):
    """Says class 1 whatever happens; its views say class 0, and the index of the window's class."""

    def predict(self, client: Client, state: State, batch: Batch) -> Prediction:
        one = F.one_hot(torch.ones(len(batch), dtype=torch.long), 3).float() * 9
        zero = F.one_hot(torch.zeros(len(batch), dtype=torch.long), 3).float()
        return Prediction(one, {"other": zero, "target": batch.target.float()})


def scores(method: Any, **changes: Any) -> dict[tuple[str, str, int], float]:
    plan = Plan(rounds=1, workers=1)
    with Run(bound(some_unseen(**changes), method).fleet, method, plan) as run:
        list(run)
        table = run.scores()
    table = table[table["split"] == "test"]
    keys = zip(table["subset"], table["metric"], table["class"], strict=True)
    return dict(zip(keys, table["value"], strict=True))


def test_a_window_that_no_sensor_saw_gets_the_most_frequent_class() -> None:
    """With its frequencies (1 + count) / (5 + 3); the others keep what the method says."""
    made = client(some_unseen())
    seen = torch.tensor([True, False])
    prediction = torch.tensor([[1.0, 2.0, 3.0], [9.0, float("nan"), 0.0]])
    found = guessed(prediction, seen, frequencies(made, bound(some_unseen())))
    assert torch.equal(found[0], prediction[0])
    assert found[1].exp().tolist() == pytest.approx([2 / 8, 2 / 8, 4 / 8])


def test_every_method_is_scored_so() -> None:
    """Test classes 0, 1, 2, 0, 0: class 1 is said of the first three, class 2 of the unseen two. A
    sensor alone is also unseen where only the others were there."""
    found = scores(Sure())
    assert found["a+b", "accuracy", -1] == pytest.approx(1 / 5)
    assert found["a", "accuracy", -1] == pytest.approx(1 / 5)
    assert found["b", "accuracy", -1] == pytest.approx(0 / 5)
    assert found["a+b", "accuracy@other", -1] == pytest.approx(1 / 5)


def test_windows_that_a_sensor_saw_are_also_scored_by_themselves() -> None:
    """Of the test classes 0, 1, 2, 0, 0 the last two were seen by nobody."""
    found = scores(Sure())
    assert found["a+b", "accuracy@seen", -1] == pytest.approx(1 / 3)
    assert found["a+b", "macro_f1@seen", -1] == pytest.approx((0 + 1 / 2 + 0) / 3)
    assert found["a+b", "mean@target_seen", -1] == pytest.approx((0 + 1 + 2) / 3)
    assert found["a+b", "mean@available_seen", -1] == pytest.approx((2 + 1 + 2) / 3)
    by_class = {metric for _, metric, label in found if metric.endswith("@seen") and label >= 0}
    assert by_class == {"hits@seen", "said@seen"}  # of which the pooled score is made
    assert "accuracy@other_seen" not in {metric for _, metric, _ in found}


def test_where_every_window_was_seen_both_are_the_same() -> None:
    found = scores(Sure(), present={})
    for metric in ("accuracy", "macro_f1", "nll"):
        assert found["a+b", f"{metric}@seen", -1] == found["a+b", metric, -1]
    assert found["a+b", "mean@target_seen", -1] == found["a+b", "mean@target", -1]


def test_a_client_that_saw_nothing_has_no_score_of_what_it_saw() -> None:
    nothing = {"a": np.arange(10) < 5, "b": np.arange(10) < 5}
    found = scores(Sure(), present=nothing)
    assert ("a+b", "accuracy", -1) in found
    assert not [metric for _, metric, _ in found if metric.endswith("seen")]


def test_views_and_measures_are_scored_with_all_sensors_only() -> None:
    found = scores(Sure())
    assert found["a+b", "mean@target", -1] == pytest.approx(np.mean([0, 1, 2, 0, 0]))
    assert found["a+b", "mean@available", -1] == pytest.approx((2 + 1 + 2 + 0 + 0) / 5)
    viewed = {subset for subset, metric, _ in found if "@" in metric}
    assert viewed == {"a+b"}
    by_class = {metric for _, metric, label in found if "@" in metric and label >= 0}
    assert by_class == {"hits@seen", "said@seen"}
    assert ("a+b", "nll@other", -1) in found


class Plain(Sure):
    """Says the same, as a tensor."""

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:  # type: ignore[override]
        return super().predict(client, state, batch).scored


def test_a_tensor_is_a_prediction_without_views() -> None:
    found, plain = scores(Sure()), scores(Plain())
    assert plain == {key: found[key] for key in plain}
    views = {metric.partition("@")[2] for _, metric, _ in found if "@" in metric}
    rest = {metric.partition("@")[2] for _, metric, _ in plain if "@" in metric}
    assert views - rest == {"other", "target", "target_seen"}


def test_records_hold_views_too(tmp_path: Path) -> None:
    with Run(bound(some_unseen(), Sure()).fleet, Sure(), Plan(rounds=1), folder=tmp_path) as run:
        (record,) = list(run)
    assert {"test.mean@target", "test.macro_f1@other", "test.macro_f1"} <= set(record.scores)


def test_tasks_without_one_class_are_left_alone() -> None:
    place = np.zeros((10, 2), np.float32)
    made = client(some_unseen() and windows(task=Localisation(2), target=place), models=(TINY,))
    prediction = torch.ones(2, 2)
    expected = frequencies(made, bound(some_unseen()))
    assert guessed(prediction, torch.tensor([False, False]), expected) is prediction
