"""The entry of newcomers, for every method: there is one if the server's state has all tensors that
the prediction needs, and none otherwise. What it says is in tests/unit/methods/test_newcomers.py.
"""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest
from torch import Tensor

from communis import Plan, Run
from communis.exchange.wire import flatten
from tests.contract.abilities import AVERAGING, METHODS, SHARING
from tests.fleets import make, mixed_fleet

NEW = (1, 3)
PLAN = Plan(rounds=2, workers=1, eval_every=0, newcomers=NEW)
SUITES = [("m0", "m1"), ("m0",), ("m0", "m1"), ("m0", "m1"), ("m1",)]
COMMON = ("w", "x", "theta", "buffers")  # fields of a server that hold tensors of the common model


@cache
def finished(name: str, buffers: str = "average") -> tuple[Run, pd.DataFrame]:
    """A run with newcomers, and their scores. buffers: of methods that may average statistics."""
    settings = {"buffers": buffers} if name in AVERAGING else {}
    with Run(mixed_fleet(suites=SUITES), make(name, **settings), PLAN) as run:
        list(run)
        scores = run.scores()
    return run, scores[scores["split"] == "newcomers"]


def common_model(run: Run) -> dict[str, Tensor]:
    """All that the state of the aggregator says of a common model, by path."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in flatten(next(iter(run.servers.values()))).items():
        field, _, path = key.partition("/")
        if field in COMMON:
            tensors[path] = tensor
    return tensors


@pytest.mark.parametrize("name", METHODS)
def test_who_has_a_common_model_has_an_entry(name: str) -> None:
    run, scores = finished(name)
    needed = set(run.method.needs_to_predict(run.cards[NEW[0]]))
    complete = needed <= common_model(run).keys()
    assert set(scores["client"]) == (set(NEW) if complete else set())
    assert all((why == "") == complete for why in run._newcomers.values())
    assert bool(scores["value"].map(lambda value: value == value).all())


@pytest.mark.parametrize("name", METHODS)
def test_no_training_reaches_a_newcomer(name: str) -> None:
    run, _ = finished(name)
    assert not any(run.cards[i].samples for i in NEW)
    assert all(set(record.cohort).isdisjoint(NEW) for record in run.history)
    assert all(client not in NEW for record in run.history for client, _ in record.refused)
    links = run.links()
    assert not set(links["sender"]) & set(NEW)
    assert not set(links["receiver"]) & set(NEW)


@pytest.mark.parametrize("name", SHARING)
def test_statistics_that_stay_with_clients_are_missing(name: str) -> None:
    run, scores = finished(name, "private") if name in AVERAGING else finished(name)
    assert scores.empty
    reasons = set(run._newcomers.values())
    assert len(reasons) == 1
    assert all("stay" in why for why in reasons)
