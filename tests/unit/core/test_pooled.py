"""The macro-F1 of all clients' windows together, against one confusion made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from sklearn import metrics as sk

from communis import FedAvg, Plan, Run, Score
from communis.core.pooled import MEAN, sibling
from communis.core.tasks import Classification, Localisation, Several
from communis.exchange.messages import Scored
from communis.results.compare import collect, rows
from communis.results.finished import read
from communis.results.report.page import render
from communis.run.summary import summary
from tests.unit import folders
from tests.unit.methods.tiny import mixed

CLASSES = 3
# Two people: what is there and what is said. The first confuses 0 and 1, the second has only 2.
ONE = ([0, 0, 1, 1, 1], [0, 1, 1, 1, 0])
OTHER = ([2, 2, 2], [2, 2, 0])
# Of all eight windows: class 0 has 1 hit of 3 said and 2 there, 1 has 2 of 3 and 3, 2 has 2 of 2
# and 3. F1 2/5, 4/6, 4/5. Alone: (1/2 + 2/3) / 2, and (4/5 + 0) / 2.
TOGETHER = (2 / 5 + 4 / 6 + 4 / 5) / 3
ALONE = ((1 / 2 + 2 / 3) / 2, (4 / 5 + 0) / 2)


def scores_of(actual: Sequence[int], said: Sequence[int]) -> Sequence[Score]:
    prediction = torch.nn.functional.one_hot(torch.tensor(said), CLASSES).float()
    return Classification(CLASSES).scores(prediction, torch.tensor(actual))


def scored(client: int, windows: tuple[list[int], list[int]], split: str = "test") -> list[Scored]:
    return [Scored(client, split, "acc", True, score) for score in scores_of(*windows)]


def test_it_is_one_confusion_and_not_a_mean_over_people() -> None:
    found = summary([*scored(0, ONE), *scored(1, OTHER)])
    assert found["test.macro_f1"] == pytest.approx(sum(ALONE) / 2)
    assert found["test.macro_f1_pooled"] == pytest.approx(TOGETHER)
    actual, said = (ONE[i] + OTHER[i] for i in (0, 1))
    assert pytest.approx(sk.f1_score(actual, said, average="macro")) == TOGETHER


def test_of_one_client_it_is_its_own() -> None:
    found = summary(scored(1, OTHER))  # class 0 is only predicted, class 1 neither
    assert found["test.macro_f1_pooled"] == pytest.approx(found["test.macro_f1"])


def test_splits_and_sensors_alone_are_not_mixed_in() -> None:
    others = [*scored(1, OTHER, "val"), *(Scored(1, "test", "gyro", False, s) for s in
                                          scores_of(*OTHER))]  # fmt: skip
    found = summary([*scored(0, ONE), *others])
    assert found["test.macro_f1_pooled"] == pytest.approx(ALONE[0])
    assert found["val.macro_f1_pooled"] == pytest.approx(ALONE[1])


def test_names_keep_task_and_view() -> None:
    assert sibling("place.hits@all", MEAN) == "place.macro_f1@all"
    assert sibling("macro_f1_pooled", MEAN) == "macro_f1"
    task = Several(("what", "where"), (Classification(2), Localisation(2)))
    found = task.scores(torch.eye(2, task.outputs), torch.tensor([[0.0, 1, 1], [1, 0, 0]]))
    whole = summary(Scored(0, "test", "acc", True, score) for score in found)
    assert whole["test.what.macro_f1_pooled"] == 1.0


def written(path: Path) -> Path:
    """Three rounds: everybody right in the first, as above in the second, and in the third the
    first client has all wrong. Validation likes round 1 best for client 0, round 2 for client 1."""
    right, wrong = (ONE[0], ONE[0]), (ONE[0], [1, 1, 0, 0, 0])
    rounds = [(right, (OTHER[0], OTHER[0])), (ONE, OTHER), (wrong, OTHER)]
    counts = [
        [x for i, one in enumerate(people) for x in scored(i, one) if x.score.label >= 0]
        for people in rounds
    ]
    means = [
        {i: x.score.value for i, one in enumerate(people) for x in scored(i, one)
         if x.score.metric == "macro_f1"}
        for people in rounds
    ]  # fmt: skip
    pooled = [
        {0: summary([x for i, one in enumerate(people) for x in scored(i, one)])[
            "test.macro_f1_pooled"]}
        for people in rounds
    ]  # fmt: skip
    val = [{0: 0.9, 1: 0.4}, {0: 0.5, 1: 0.9}, {0: 0.1, 1: 0.2}]
    history = {"val.macro_f1": val, "test.macro_f1": means, "test.macro_f1_pooled": pooled}
    return folders.write(path, "alpha", 0, history, rows={"scores": counts})


@pytest.mark.slow
def test_the_round_that_counts(tmp_path: Path) -> None:
    """Of the third round class 0 has no hit of 4 said and 2 there, 1 none, 2 as before; of every
    client's own best, the first client is right in all and the second as above."""
    run = read(written(tmp_path))
    third = (0 + 0 + 4 / 5) / 3
    assert run.final("macro_f1_pooled") == pytest.approx(third)
    assert run.final("macro_f1_pooled", "common") == pytest.approx(TOGETHER)  # .65, .7, .15
    assert run.final("macro_f1_pooled", "tail") == pytest.approx((1 + TOGETHER + third) / 3)
    own_best = (4 / 5 + 1 + 4 / 5) / 3  # class 0 is said once too often by the second client
    assert run.final("macro_f1_pooled", "client") == pytest.approx(own_best)
    assert run.final("macro_f1_pooled", by="macro_f1") == pytest.approx(third)
    assert run.by_client("macro_f1_pooled")[1] == pytest.approx(ALONE[1])


def test_comparisons_can_be_judged_by_it(tmp_path: Path) -> None:
    written(tmp_path / "alpha" / "seed0")
    runs = collect([tmp_path])
    (row,) = rows(runs, "macro_f1_pooled", "common")
    assert row.scores["macro_f1_pooled"].mean == pytest.approx(TOGETHER)
    assert row.scores["macro_f1"].mean == pytest.approx(sum(ALONE) / 2)
    assert "macro f1 pooled" in render(runs, "macro_f1", "t")
    page = render(runs, "macro_f1_pooled", "t")
    assert "Test macro f1 of every client" in page
    assert "0: acc" in page
    assert "no mean over clients, but that of one confusion" in page


def test_a_run_and_its_folder_agree_also_for_the_common_model(tmp_path: Path) -> None:
    fleet = mixed(held_out=3)
    plan = Plan(rounds=2, workers=1, eval_whole=True)
    with Run(fleet, FedAvg(lr=0.3), plan, folder=tmp_path, config=CONFIG) as run:
        *_, last = run
    names = ("macro_f1_pooled", "macro_f1_pooled@all", "macro_f1_pooled@only_a")
    for name in names:
        assert read(tmp_path).final(name) == pytest.approx(last.scores[f"test.{name}"])


CONFIG = 'name = "x"\nseed = 0\n[method]\nname = "fedavg"\n[run]\nrounds = 2\n'


def test_a_client_that_diverged_leaves_no_pooled_score() -> None:
    """Dropping it would flatter the method."""
    nothing = torch.full((3, CLASSES), float("nan"))
    broken = Classification(CLASSES).scores(nothing, torch.tensor([2, 2, 2]))
    others = [Scored(1, "test", "acc", True, score) for score in broken]
    assert math.isnan(summary([*scored(0, ONE), *others])["test.macro_f1_pooled"])
