"""Fleets of several architectures: who takes them, who refuses, and means within one model."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from communis import CommunisError, Fleet, Plan, Run
from communis.core.plugins import find
from communis.methods.fedavg import FedAvg
from communis.models.zoo import Architecture
from tests.contract.abilities import METHODS
from tests.fleets import make, mixed_fleet
from tests.unit.methods.tiny import Game, fleet, play, ran, same

WIDE = Architecture(width=6, embedding=8, norm=True)
NARROW = Architecture(width=4, embedding=8, norm=True)
TARGETS = ((0, 1, 2, 0), (1, 2, 0, 1, 1, 2), (2, 1, 0), (0, 2, 1, 1))
MODELS = (WIDE, NARROW, WIDE, NARROW)
MIXED = [name for name in METHODS if make(name).needs.models != "alike"]
AVERAGING = [name for name in METHODS if hasattr(make(name), "mask_mode")]  # built on FedAvg


def several() -> Fleet:
    made = mixed_fleet()
    return dataclasses.replace(made, models=[(WIDE, NARROW)[i % 2] for i in range(len(made))])


@pytest.mark.parametrize("name", METHODS)
def test_refused_with_the_names_of_those_that_can(name: str) -> None:
    if name in MIXED:
        run = ran(several(), make(name), rounds=2)
        assert not any(record.refused for record in run.history)
        return
    with pytest.raises(CommunisError) as refusal:
        ran(several(), make(name))
    assert all(other in str(refusal.value) for other in MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_with_a_mean_for_every_model(name: str) -> None:
    settings: dict[str, Any] = {"by_model": True}
    run = ran(several(), make(name, **settings), rounds=2, eval_every=2)
    assert not any(record.refused for record in run.history)
    marks = {path.partition("@")[2] for path in run.server.w}
    assert len(marks) == 2


def test_methods_for_mixed_models() -> None:
    assert MIXED == ["comfed", "fedapa", "fedmd", "fedpcl", "fedproto", "local"]


def test_names_built_on_fedavg() -> None:
    assert "fedavg" in AVERAGING
    assert all(issubclass(find("methods", name), FedAvg) for name in AVERAGING)


def unmarked(values: Any) -> dict[str, torch.Tensor]:
    return {path.partition("@")[0]: tensor for path, tensor in values.items()}


def test_groups_are_fleets_of_their_own() -> None:
    """The mean of a model is that of a fleet in which only its clients train, bit for bit."""
    together = play(fleet(TARGETS, models=MODELS), FedAvg(lr=0.3, by_model=True), rounds=3)
    for kind, clients in ((WIDE, [0, 2]), (NARROW, [1, 3])):
        alone = play(fleet(TARGETS, models=(kind,)), FedAvg(lr=0.3), cohorts=[clients] * 3)
        mine = clients[0]
        assert same(unmarked(down(together, mine)), down(alone, mine))


def down(game: Game, client: int) -> Any:
    return game.method.down(game.server, game.bound.cards[client]).w


def test_updates_are_compared_within_one_model() -> None:
    """Paths of the same name and size in two architectures are two groups."""
    twin = dataclasses.replace(WIDE, norm=False)
    made = fleet(TARGETS, models=(WIDE, twin, WIDE, twin), held_out=1)
    with Run(made, FedAvg(by_model=True), Plan(rounds=2, workers=1, pairs=True)) as run:
        list(run)
    found = run.folder.pairs().to_pandas()
    assert {*zip(found["one"], found["other"], strict=True)} == {(0, 2), (1, 3)}
    log = run.folder.log().to_pandas()
    assert log["name"].str.startswith("spread/").any()


def test_one_model_needs_no_marks() -> None:
    """With one architecture the setting changes nothing at all."""
    plain, marked = (
        ran(fleet(TARGETS), FedAvg(lr=0.3, by_model=by_model), rounds=2)
        for by_model in (False, True)
    )
    assert same(plain.server.w, marked.server.w)


def test_marks_survive_odd_names() -> None:
    """An architecture that is not in the zoo is called by its description."""
    run = ran(fleet(TARGETS, models=MODELS), FedAvg(by_model=True))
    assert all(path.count("@") == 1 for path in run.server.w)
    assert all("/" not in path and path.partition("@")[2].isidentifier() for path in run.server.w)
